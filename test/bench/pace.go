package main

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// pace is what the kernel alone takes, without Berth, on the node on which Berth is measured. How long
// Berth keeps others waiting, and how fast it deletes links, differs between machines as these do.
type pace struct {
	message series // to delete messageLinks links by one message
	list    series // to list all of the node's links
	listCPU series // the processor time of that
}

const (
	// messageLinks is how many links Berth deletes by one message at most.
	messageLinks = 32
	// paceGroup is the group of the first message's links.
	paceGroup = 7000
)

// pace measures the kernel's pace with links to pods that have no interface. It leaves nothing behind. Without
// pods it measures only lists. where says, in the report, on what node it measures.
func (b *bench) pace(ps []*pod, where string) (pace, error) {
	runtime.LockOSThread() // for RUSAGE_THREAD
	defer runtime.UnlockOSThread()
	var p pace
	messages := len(ps) / messageLinks
	for i, pod := range ps[:messages*messageLinks] {
		if err := linked(pod, fmt.Sprintf("pace%d", i), paceGroup+i/messageLinks); err != nil {
			return p, fmt.Errorf("making a link to measure the kernel with: %w", err)
		}
	}
	for range b.pick(9, 3) {
		cpu, err := threadCPU()
		if err != nil {
			return p, err
		}
		begun := time.Now()
		if err := listLinks(); err != nil {
			return p, fmt.Errorf("listing links: %w", err)
		}
		took := time.Since(begun)
		after, err := threadCPU()
		if err != nil {
			return p, err
		}
		p.list, p.listCPU = append(p.list, took), append(p.listCPU, after-cpu)
	}
	for i := range messages {
		begun := time.Now()
		if err := deleteGroup(paceGroup + i); err != nil {
			return p, fmt.Errorf("deleting links: %w", err)
		}
		p.message = append(p.message, time.Since(begun))
	}
	if messages == 0 {
		return p, nil
	}
	t := b.report.section("The kernel alone, "+where,
		"what", "times", "median ms", "least-greatest ms", "CPU ms")
	t.row(fmt.Sprintf("one message that deletes %d links", messageLinks), fmt.Sprint(len(p.message)), num(median(p.message)), p.message.span(), "")
	t.row("a list of all links", fmt.Sprint(len(p.list)), num(median(p.list)), p.list.span(), num(median(p.listCPU)))
	return p, nil
}

// linked makes a link to a pod whose ends are both up.
func linked(p *pod, name string, group int) error {
	n, err := p.ref.Open()
	if err != nil {
		return err
	}
	defer n.Close()
	link := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, Group: uint32(group)},
		PeerName:  ifname, PeerNamespace: netlink.NsFd(n.Fd()),
	}
	if err := netlink.LinkAdd(link); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	inside, err := netlink.NewHandleAt(netns.NsHandle(n.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer inside.Close()
	end, err := inside.LinkByName(ifname)
	if err != nil {
		return err
	}
	return inside.LinkSetUp(end)
}

// listLinks lists all links, as the agent does: without their statistics.
func listLinks() error {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(1<<3))) // RTEXT_FILTER_SKIP_STATS
	_, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	return err
}

// deleteGroup is `ip link del group N`.
func deleteGroup(group int) error {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(uint32(group))))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// threadCPU returns the processor time of the calling thread.
func threadCPU() (time.Duration, error) { return spent(unix.RUSAGE_THREAD) }

// childrenCPU returns the processor time of all processes that this process has waited for: of plugins.
func childrenCPU() (time.Duration, error) { return spent(unix.RUSAGE_CHILDREN) }

func spent(who int) (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// deletes returns how many links the kernel alone deletes in a second, message after message.
func (p pace) deletes() float64 { return messageLinks / median(p.message).Seconds() }

// judge compares Berth with the kernel alone. The limits are those of issue 11 in ms and in links a second, by
// the kernel's pace on a machine like the one that set them: 15 ms a message, and 1,400 links a second.
func (p pace) judge(r *report, goneASecond []float64, worst stalls, idleADD time.Duration) {
	message := float64(median(p.message))
	r.atLeast("links gone a second by the API / by the kernel alone", median(goneASecond)/p.deletes(), 0.7, "x")
	r.atMost("longest wait to change another link while the API deletes links / one message of the kernel", float64(slices.Max(worst.lock))/message, 1.3, "x")
	r.atMost("longest ADD while the API deletes links, above an idle ADD's p50 / one message of the kernel", float64(slices.Max(worst.add)-idleADD)/message, 1.3, "x")
}
