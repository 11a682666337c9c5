// Package wgtest plays the kernel's part where the kernel has no WireGuard: devices of wireguard-go, in user space, which speak the
// same protocol.
package wgtest

import (
	"fmt"
	"net"
	"sync"
	"testing"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// Maker makes WireGuard devices in a network namespace.
type Maker struct {
	t  testing.TB
	at *ns.Netns // nil: the test's own

	mu      sync.Mutex
	devices map[string]*played // by name
}

// played is a device, and the socket by which it is told what to do.
type played struct {
	*device.Device
	socket net.Listener
}

func (p *played) close() {
	p.socket.Close()
	p.Close()
}

// New returns a maker. The test's end takes all of its devices away. A plain user's test is skipped.
func New(t testing.TB, at *ns.Netns) *Maker {
	t.Helper()
	if !nettest.Programs(t) {
		t.Skip("wgtest: wireguard-go opens /dev/net/tun and makes sockets in /var/run, and this is a user namespace")
	}
	m := &Maker{t: t, at: at, devices: map[string]*played{}}
	t.Cleanup(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, p := range m.devices {
			p.close()
		}
	})
	return m
}

func (m *Maker) do(f func() error) error {
	if m.at == nil {
		return f()
	}
	return m.at.Do(f)
}

// Make makes a device, as AddWireGuard does, which ends when somebody deletes its link. The name must be one of a kind on the whole
// machine, because all devices have their sockets in one folder.
func (m *Maker) Make(name string, mtu int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.devices[name]; p != nil {
		p.close()
	}
	return m.do(func() error {
		link, err := tun.CreateTUN(name, mtu)
		if err != nil {
			return fmt.Errorf("making a TUN device: %w", err)
		}
		d := device.NewDevice(link, &bound{conn.NewDefaultBind(), m}, device.NewLogger(device.LogLevelSilent, ""))
		file, err := ipc.UAPIOpen(name)
		if err != nil {
			d.Close()
			return fmt.Errorf("opening the device's socket: %w", err)
		}
		socket, err := ipc.UAPIListen(name, file)
		if err != nil {
			d.Close()
			return fmt.Errorf("listening at the device's socket: %w", err)
		}
		go func() {
			for {
				c, err := socket.Accept()
				if err != nil {
					return
				}
				go d.IpcHandle(c)
			}
		}()
		go func() { // somebody deletes the link
			<-d.Wait()
			socket.Close()
		}()
		m.devices[name] = &played{d, socket}
		return nil
	})
}

// bound opens a device's UDP sockets in the device's namespace, whichever thread opens them.
type bound struct {
	conn.Bind
	m *Maker
}

func (b *bound) Open(port uint16) (fns []conn.ReceiveFunc, at uint16, err error) {
	err = b.m.do(func() (err error) { fns, at, err = b.Bind.Open(port); return err })
	return fns, at, err
}
