package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// plant makes a thing for a pod that DEL does not remove, because DEL does not know of the thing. Real
// plugins have been seen to forget each of these things.
func (c *call) plant(l *lease) {
	var err error
	switch c.wrong {
	case "file-left", "file-left-until-gc": // a cache of the result
		err = os.WriteFile(filepath.Join(c.StateDir, "result-"+c.id), nil, 0o600)
	case "second-link-left": // such as an ifb for shaping
		err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "s" + l.Link[1:]}})
	case "route-left":
		err = netlink.RouteAdd(&netlink.Route{Dst: host(l.Address), Type: unix.RTN_BLACKHOLE, Table: 100})
	case "neighbour-left":
		var uplink netlink.Link
		if uplink, err = netlink.LinkByName("eth0"); err == nil {
			err = netlink.NeighAdd(&netlink.Neigh{LinkIndex: uplink.Attrs().Index, IP: l.Address.AsSlice(), Flags: netlink.NTF_PROXY})
		}
	case "host-address-left":
		var uplink netlink.Link
		if uplink, err = netlink.LinkByName("eth0"); err == nil {
			err = netlink.AddrAdd(uplink, &netlink.Addr{IPNet: host(l.Address)})
		}
	case "masquerade-left":
		err = exec.Command("iptables", "-w", "-t", "nat", "-A", "POSTROUTING", "-s", l.Address.String(), "-j", "MASQUERADE").Run()
	case "host-port-left":
		err = mapPort(l.Address)
	default:
		err = c.change()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "planting %s: %v\n", c.wrong, err)
	}
}

// mapPort maps a port of the node to a pod, in a map of all pods:
//
//	nft add element ip planted hostports { PORT : ADDRESS }
func mapPort(pod netip.Addr) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	t := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "planted"})
	s := &nftables.Set{Table: t, Name: "hostports", IsMap: true, KeyType: nftables.TypeInetService, DataType: nftables.TypeIPAddr}
	address := pod.As4()
	if err := conn.AddSet(s, []nftables.SetElement{{Key: address[2:], Val: address[:]}}); err != nil {
		return err
	}
	return conn.Flush()
}

// makeExtra makes a link on the host with a name that nobody knows beforehand, and takes a long
// time before it writes that name down.
func makeExtra() string {
	name := fmt.Sprintf("x%d", time.Now().UnixNano()%1e12)
	// ip link add NAME type bridge
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
		fmt.Fprintf(os.Stderr, "planting a link: %v\n", err)
	}
	dawdle()
	return name
}

// dawdle makes it likely that the suite kills the plugin here: dawdle takes long, and makes many
// system calls that look as if they changed something.
func dawdle() {
	for range 50 {
		time.Sleep(2 * time.Millisecond)
		_ = unix.Flock(-1, unix.LOCK_UN) // EBADF
	}
}

// stray writes to the machine's folders, as plugins do with logs and caches. It fails if it
// cannot write a folder that every program may expect to be writable. It also tries other
// folders, and ignores their errors.
func stray() error {
	const name = "planted-stray"
	for _, dir := range []string{"/usr/local", "/opt", "/home", "/root", "/srv", "/mnt"} {
		_ = os.WriteFile(filepath.Join(dir, name), nil, 0o600)
	}
	for _, dir := range []string{"/etc", "/tmp", "/var/lib", "/var/log", "/var/tmp", "/dev/shm"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			return err
		}
	}
	_ = os.Mkdir(filepath.Join("/sys/fs/bpf", name), 0o700) // a user namespace has no such folder
	return nil
}

// wreck is the file by which the fault broken-at-once remembers that two calls came at the same time.
const wreck = "/run/planted-wreck"

// breakAtOnce refuses calls once a call has found the state folder locked: that call, and every later
// call except DEL.
func breakAtOnce(dir *os.File) error {
	if unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		if err := os.WriteFile(wreck, nil, 0o600); err != nil {
			return fail(codeIO, "breaking: %w", err)
		}
	}
	if _, err := os.Stat(wreck); err == nil && os.Getenv("CNI_COMMAND") != "DEL" {
		return fail(codeOurs, "two calls came at the same time once")
	}
	return nil
}

// memory is the file of the addresses that the fault addresses-used-up never forgets. A
// daemon might keep them like this, where the suite does not look.
const memory = "/run/planted-memory"

func usedUp() []netip.Addr {
	raw, _ := os.ReadFile(memory)
	var addrs []netip.Addr
	for _, text := range strings.Fields(string(raw)) {
		if addr, err := netip.ParseAddr(text); err == nil {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

func useUp(addr netip.Addr) {
	f, err := os.OpenFile(memory, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintf(os.Stderr, "planting: %v\n", err)
		return
	}
	defer f.Close()
	fmt.Fprintln(f, addr)
}
