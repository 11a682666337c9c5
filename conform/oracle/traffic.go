package oracle

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// fdb is `bridge fdb show`, without what is learnt, and without the MACs of the namespace's own links and of groups of multicast that
// the kernel adds by itself.
func fdb() ([]string, error) {
	all, name, err := namedLinks()
	if err != nil {
		return nil, err
	}
	own := map[string]bool{}
	for _, l := range all {
		own[l.Attrs().HardwareAddr.String()] = true
	}
	entries, err := netlink.NeighList(0, unix.AF_BRIDGE)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing forwarding entries: %w", err)
	}
	var lines []string
	for _, e := range entries {
		mac := e.HardwareAddr.String()
		if e.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) == 0 || own[mac] || strings.HasPrefix(mac, "33:33:") || strings.HasPrefix(mac, "01:00:5e:") {
			continue
		}
		line := fmt.Sprintf("fdb %s %s vlan %d", name[e.LinkIndex], mac, e.Vlan)
		if e.IP != nil {
			line += fmt.Sprintf(" dst %s vni %d", e.IP, e.VNI)
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// multicast is `ip maddress`, limited to the link-layer addresses that somebody has added by hand.
func multicast() ([]string, error) {
	rows, err := table("dev_mcast")
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, f := range rows {
		// index name users users-by-hand address
		if len(f) == 5 && f[3] != "0" {
			lines = append(lines, fmt.Sprintf("multicast %s %s", f[1], f[4]))
		}
	}
	return lines, nil
}

// classful are the queueing disciplines whose classes somebody has made. Others, such as fq_codel, list what is queued now.
var classful = []string{"htb", "hfsc", "drr", "qfq"}

// control is `tc filter` and `tc class`, on all links.
func control() ([]string, error) {
	name, err := linkNames()
	if err != nil {
		return nil, err
	}
	all, err := netlink.QdiscList(nil)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing queueing disciplines: %w", err)
	}
	var lines []string
	for _, q := range all {
		a := q.Attrs()
		if a.Handle == 0 {
			continue // the kernel's own, which can have neither filters nor classes
		}
		link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: a.LinkIndex, Name: name[a.LinkIndex]}}
		parents := []uint32{a.Handle}
		if q.Type() == "clsact" {
			parents = []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS}
		}
		for _, parent := range parents {
			filters, err := netlink.FilterList(link, parent)
			if err != nil && !absent(err) {
				return nil, fmt.Errorf("listing filters of %s: %w", link.Name, err)
			}
			for _, f := range filters {
				lines = append(lines, fmt.Sprintf("filter %s %s parent %s preference %d protocol %#x", link.Name, f.Type(), netlink.HandleStr(parent), f.Attrs().Priority, f.Attrs().Protocol))
			}
		}
		if !slices.Contains(classful, q.Type()) {
			continue
		}
		classes, err := netlink.ClassList(link, 0)
		if err != nil {
			return nil, fmt.Errorf("listing classes of %s: %w", link.Name, err)
		}
		for _, c := range classes {
			lines = append(lines, fmt.Sprintf("class %s %s parent %s class %s", link.Name, c.Type(), netlink.HandleStr(c.Attrs().Parent), netlink.HandleStr(c.Attrs().Handle)))
		}
	}
	return lines, nil
}

// hooks are the places at which links have eBPF programs without a filter (enum bpf_attach_type of linux/bpf.h).
var hooks = []struct {
	name string
	at   uint32
}{{"tcx ingress", 46}, {"tcx egress", 47}, {"netkit primary", 54}, {"netkit peer", 55}}

// progQuery is the command BPF_PROG_QUERY of bpf(2), and its attributes as far as they are used here.
const progQuery = 16

type queried struct {
	link, at, queryFlags, attachFlags uint32
	ids                               uint64
	count, _                          uint32
	_                                 [4]uint64
}

// programs is `bpftool net`, for tcx and netkit. In a user namespace the kernel refuses the question.
func programs() ([]string, error) {
	name, err := linkNames()
	if err != nil {
		return nil, err
	}
	var lines []string
	for index, link := range name {
		for _, h := range hooks {
			q := queried{link: uint32(index), at: h.at}
			_, _, e := unix.Syscall(unix.SYS_BPF, progQuery, uintptr(unsafe.Pointer(&q)), unsafe.Sizeof(q))
			switch {
			case e == 0 && q.count > 0:
				lines = append(lines, fmt.Sprintf("program %s %s has %d", link, h.name, q.count))
			case e == unix.EPERM || e == unix.ENOSYS:
				return nil, nil
			case e != 0 && !absent(e) && !errors.Is(e, unix.ENODEV) && !errors.Is(e, unix.ENOENT):
				return nil, fmt.Errorf("listing eBPF programs of %s: %w", link, e)
			}
		}
	}
	return lines, nil
}
