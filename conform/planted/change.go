package main

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// changes are faults that change something for a pod that DEL does not undo: each takes a link that was there before, and the
// pod's number, by which it changes the link another time.
var changes = map[string]func(link netlink.Link, pod int) error{
	"mtu-changed":     func(l netlink.Link, pod int) error { return netlink.LinkSetMTU(l, 1400-pod) },
	"queue-changed":   func(l netlink.Link, pod int) error { return netlink.LinkSetTxQLen(l, 500+pod) },
	"group-changed":   func(l netlink.Link, pod int) error { return netlink.LinkSetGroup(l, 100+pod) },
	"alias-changed":   func(l netlink.Link, pod int) error { return netlink.LinkSetAlias(l, "pod "+strconv.Itoa(pod)) },
	"altname-left":    func(l netlink.Link, pod int) error { return netlink.LinkAddAltName(l, "uplink-of-"+strconv.Itoa(pod)) },
	"promisc-changed": func(l netlink.Link, pod int) error { return promisc(l, l.Attrs().RawFlags&unix.IFF_PROMISC == 0) },
	"qdisc-changed":   fifo,
	"uplink-enslaved": enslave,
	"link-sysctl-changed": func(l netlink.Link, pod int) error {
		return sysctl("ipv4/conf/"+l.Attrs().Name+"/medium_id", pod)
	},
	"neigh-sysctl-changed": func(l netlink.Link, pod int) error {
		return sysctl("ipv4/neigh/"+l.Attrs().Name+"/unres_qlen", 200+pod)
	},
	"proxy-arp-set":  func(netlink.Link, int) error { return sysctl("ipv4/conf/default/proxy_arp", 1) }, // which the suite takes for set up once
	"ports-reserved": func(_ netlink.Link, pod int) error { return sysctl("ipv4/ip_local_reserved_ports", 20000+pod) },
}

// promisc is `ip link set LINK promisc on` or off.
func promisc(l netlink.Link, on bool) error {
	if on {
		return netlink.SetPromiscOn(l)
	}
	return netlink.SetPromiscOff(l)
}

// fifo is `tc qdisc replace dev LINK root pfifo` or, with every other pod, bfifo.
func fifo(l netlink.Link, pod int) error {
	q := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT}, QdiscType: []string{"pfifo", "bfifo"}[pod%2]}
	return netlink.QdiscReplace(q)
}

// enslave gives eth1 another master with each pod, one of two bridges.
func enslave(_ netlink.Link, pod int) error {
	var bridges [2]netlink.Link
	for i, name := range []string{"planted0", "planted1"} {
		bridges[i] = &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
		if err := netlink.LinkAdd(bridges[i]); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	free, err := netlink.LinkByName("eth1")
	if err != nil {
		return err
	}
	to, err := netlink.LinkByName(bridges[pod%2].Attrs().Name)
	if err != nil {
		return err
	}
	return netlink.LinkSetMaster(free, to)
}

// sysctl is `sysctl -w net/NAME=VALUE`.
func sysctl(name string, value int) error {
	return os.WriteFile("/proc/sys/net/"+name, []byte(strconv.Itoa(value)), 0)
}

// number returns the number of the suite's container, which is at the end of the container's id.
func (c *call) number() int {
	n, _ := strconv.Atoi(c.id[strings.LastIndex(c.id, "-")+1:]) // 0 for an id without a number, which one check tries
	return n
}

// change carries out one of remains, of commands, or of changes and programs on the node's interface.
func (c *call) change() error {
	if leave, ok := remains[c.wrong]; ok {
		return leave(c)
	}
	if lines, ok := commands[c.wrong]; ok {
		return c.command(lines)
	}
	do := changes[c.wrong]
	if do == nil {
		do = programs[c.wrong]
	}
	if do == nil {
		return nil
	}
	uplink, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	return do(uplink, c.number())
}
