// Package wireguard is the door to WireGuard devices: their keys, ports and peers. The kernel has the devices, or a
// program in user space that plays the kernel's part and listens at /var/run/wireguard/NAME.sock, as wireguard-go does.
package wireguard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
)

// Device is what WireGuard has of a device.
type Device struct {
	PublicKey string // base64
	Port      uint16 // UDP
	Peers     []Peer // by their keys
}

// Peer is what a device has of another node.
type Peer struct {
	PublicKey  string // base64
	Endpoint   netip.AddrPort
	AllowedIPs []netip.Prefix // in order: packets to these go to the peer, and only packets from these are taken from it
	Handshake  time.Time      // the last one; zero: none yet
}

// Door leads to the WireGuard devices of a network namespace.
type Door struct {
	at *ns.Netns
}

// Open returns the door to the devices of a network namespace; nil: this thread's.
func Open(at *ns.Netns) *Door { return &Door{at} }

// do opens the library's client, whose sockets belong to the namespace in which they are opened, for one call. Few calls are made,
// so none keeps a socket open.
func (d *Door) do(what string, f func(*wgctrl.Client) error) error {
	call := func() error {
		c, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer c.Close()
		return f(c)
	}
	var err error
	if d.at == nil {
		err = call()
	} else {
		err = d.at.Do(call)
	}
	if errors.Is(err, os.ErrNotExist) {
		return kernel.As(kernel.ErrNotFound, fmt.Errorf("%s: there is no such WireGuard device", what))
	}
	if err != nil {
		return kernel.Classify(fmt.Errorf("%s: %w", what, err))
	}
	return nil
}

// Device returns what WireGuard has of a device. If no device of the name is a WireGuard device, the error is kernel.ErrNotFound.
//
//	wg show NAME
func (d *Door) Device(name string) (dev Device, err error) {
	err = d.do("wg show "+name, func(c *wgctrl.Client) error {
		has, err := c.Device(name)
		if err != nil {
			return err
		}
		dev = Device{PublicKey: has.PublicKey.String(), Port: uint16(has.ListenPort)}
		for _, p := range has.Peers {
			dev.Peers = append(dev.Peers, peerOf(p))
		}
		slices.SortFunc(dev.Peers, func(a, b Peer) int { return strings.Compare(a.PublicKey, b.PublicKey) })
		return nil
	})
	return dev, err
}

func peerOf(p wgtypes.Peer) Peer {
	out := Peer{PublicKey: p.PublicKey.String(), Handshake: p.LastHandshakeTime}
	if p.Endpoint != nil {
		at := p.Endpoint.AddrPort()
		out.Endpoint = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	}
	for _, n := range p.AllowedIPs {
		ones, _ := n.Mask.Size()
		if a, ok := netip.AddrFromSlice(n.IP); ok {
			out.AllowedIPs = append(out.AllowedIPs, netip.PrefixFrom(a.Unmap(), ones))
		}
	}
	slices.SortFunc(out.AllowedIPs, netip.Prefix.Compare)
	return out
}

// Set gives a device its private key and its port. Its peers stay.
//
//	wg set NAME private-key FILE listen-port PORT
func (d *Door) Set(name string, secret Secret, port uint16) error {
	key, at := wgtypes.Key(secret), int(port)
	return d.do("wg set "+name+" private-key and listen-port", func(c *wgctrl.Client) error {
		return c.ConfigureDevice(name, wgtypes.Config{PrivateKey: &key, ListenPort: &at})
	})
}

// SetPeer gives a device a peer, or changes the peer of that key. What other peers have of its allowed IPs they lose.
// Without a valid endpoint, the peer stays where it is.
//
//	wg set NAME peer KEY endpoint ADDR:PORT allowed-ips CIDR,...
func (d *Door) SetPeer(name string, p Peer) error {
	key, err := wgtypes.ParseKey(p.PublicKey)
	if err != nil {
		return err
	}
	c := wgtypes.PeerConfig{PublicKey: key, ReplaceAllowedIPs: true}
	if p.Endpoint.IsValid() {
		c.Endpoint = net.UDPAddrFromAddrPort(p.Endpoint)
	}
	for _, cidr := range p.AllowedIPs {
		c.AllowedIPs = append(c.AllowedIPs, net.IPNet{IP: cidr.Addr().AsSlice(), Mask: net.CIDRMask(cidr.Bits(), cidr.Addr().BitLen())})
	}
	return d.configure(name, "peer "+p.PublicKey, c)
}

// RemovePeer takes a peer from a device. If the device has no such peer, nothing changes.
//
//	wg set NAME peer KEY remove
func (d *Door) RemovePeer(name, public string) error {
	key, err := wgtypes.ParseKey(public)
	if err != nil {
		return err
	}
	return d.configure(name, "peer "+public+" remove", wgtypes.PeerConfig{PublicKey: key, Remove: true})
}

func (d *Door) configure(name, what string, p wgtypes.PeerConfig) error {
	return d.do("wg set "+name+" "+what, func(c *wgctrl.Client) error {
		return c.ConfigureDevice(name, wgtypes.Config{Peers: []wgtypes.PeerConfig{p}})
	})
}
