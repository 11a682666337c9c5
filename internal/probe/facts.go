package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// inside returns what is wrong inside a pod for packets from the pod to an address.
func (p *prober) inside(ctx context.Context, at *ns.Netns, of Pod, to netip.Addr) (wrong []string) {
	c, err := rtnl.OpenFor(ctx, at)
	if err != nil {
		return []string{"looking into the pod: " + err.Error()}
	}
	defer c.Close()
	var link, lo rtnl.Link
	switch err := c.Do(rtnl.GetLink(of.Ifname, &link)); {
	case errors.Is(err, kernel.ErrNotFound):
		return []string{"the pod has no interface " + of.Ifname}
	case err != nil:
		return []string{"looking into the pod: " + err.Error()}
	case of.MAC != "" && link.MAC != of.MAC:
		wrong = append(wrong, fmt.Sprintf("the pod's %s has the address %s, not %s", of.Ifname, link.MAC, of.MAC))
	}
	var host rtnl.Link
	var id int
	if err := p.node.Do(rtnl.GetLink(of.Host, &host), rtnl.NetnsID(at.Fd(), &id)); err == nil && !host.EndsAt(link.Index, id) {
		wrong = append(wrong, fmt.Sprintf("the pod's %s is not the other end of %s", of.Ifname, of.Host))
	}
	if state := state(c, of.Ifname); state != "" {
		wrong = append(wrong, "the pod's "+of.Ifname+" "+state)
	}
	if err := c.Do(rtnl.GetLink("lo", &lo)); err == nil && !lo.Up && isOf(of, to) {
		wrong = append(wrong, "the pod's lo is down")
	}
	for _, a := range of.Addresses {
		var local bool
		if err := c.Do(rtnl.IsLocal(a, &local)); a.Is6() == to.Is6() && (err != nil || !local) {
			wrong = append(wrong, fmt.Sprintf("the pod's %s lacks the address %s", of.Ifname, a))
		}
	}
	var way rtnl.Way
	if err := c.Do(rtnl.GetWay(to, netip.Addr{}, 0, &way)); err != nil && link.Up {
		wrong = append(wrong, fmt.Sprintf("the pod has no route to %s (%s)", to, kernelSays(err)))
	}
	return wrong
}

// state says why a link carries no packets; "" if it carries some.
func state(c *rtnl.Conn, link string) string {
	var l rtnl.Link
	var carries bool
	if err := c.Do(rtnl.GetLink(link, &l), rtnl.Carries(link, &carries)); err != nil || carries {
		return ""
	}
	if !l.Up {
		return "is down"
	}
	return "has no carrier: its other end is down"
}

func isOf(p Pod, a netip.Addr) bool {
	for _, own := range p.Addresses {
		if a == own {
			return true
		}
	}
	return false
}

// kernelSays is an error in the kernel's own words.
func kernelSays(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

// routing returns why the node would not route a packet, or its answer.
func (p *prober) routing(f flight, o outcome, reply bool) (wrong []string) {
	from, to, in := f.from, f.to, ""
	if reply {
		from, to = f.to, f.from
	}
	for _, s := range o.seen {
		if s.Reply == reply && s.In != 0 {
			if names, err := p.node.Names(s.In); err == nil && len(names) > 0 {
				in = names[0]
			}
		}
	}
	switch {
	case in != "":
	case reply:
		in = p.linkTo(f.to)
	case f.inPod:
		in = p.Pod.Host
	}
	forwards := len(f.there) == 3
	family := "ipv4"
	if to.Is6() {
		family = "ipv6"
	}
	if forwards {
		for _, name := range []string{family + "/conf/all/forwarding", family + "/conf/" + in + "/forwarding"} {
			if name == "ipv4/conf/all/forwarding" {
				name = "ipv4/ip_forward"
			}
			if value, err := ns.Sysctl(name); err == nil && value == "0" {
				wrong = append(wrong, "net."+strings.ReplaceAll(name, "/", ".")+" = 0")
			}
		}
	}
	if in != "" && from.IsValid() && to.IsValid() {
		wrong = append(wrong, p.reversePath(from, in)...)
	}
	if len(wrong) > 0 || !to.IsValid() {
		return wrong
	}
	var link rtnl.Link
	if in != "" {
		if err := p.node.Do(rtnl.GetLink(in, &link)); err != nil {
			return []string{fmt.Sprintf("the node has no link %s", in)}
		}
	}
	var way rtnl.Way
	ask := rtnl.GetWay(to, netip.Addr{}, 0, &way)
	if in != "" && from.IsValid() && !to.Is6() {
		ask = rtnl.GetWay(to, from, link.Index, &way)
	}
	if err := p.node.Do(ask); err != nil {
		wrong = append(wrong, fmt.Sprintf("%s: %s", ask, kernelSays(err)))
	}
	return wrong
}

// reversePath says why rp_filter refuses packets that come from an address by a link, if it
// does.
func (p *prober) reversePath(from netip.Addr, in string) []string {
	if from.Is6() {
		return nil
	}
	mode := 0
	for _, of := range []string{"all", in} {
		if text, err := ns.Sysctl("ipv4/conf/" + of + "/rp_filter"); err == nil {
			if n, err := strconv.Atoi(text); err == nil {
				mode = max(mode, n)
			}
		}
	}
	if mode == 0 {
		return nil
	}
	back := p.linkTo(from)
	switch {
	case back == in, mode == 2 && back != "":
		return nil
	case back == "":
		back = "no link"
	}
	return []string{fmt.Sprintf("rp_filter of %s is %d, and the node's way to %s is by %s", in, mode, from, back)}
}

// linkTo returns the name of the link by which the node would send to an address; "" if the node
// would not send.
func (p *prober) linkTo(to netip.Addr) string {
	var way rtnl.Way
	if err := p.node.Do(rtnl.GetWay(to, netip.Addr{}, 0, &way)); err != nil || way.Index == 0 {
		return ""
	}
	names, err := p.node.Names(way.Index)
	if err != nil || len(names) == 0 {
		return ""
	}
	return names[0]
}

// beyond returns what is wrong between the node and the machine that should answer.
func (p *prober) beyond(ctx context.Context, f flight) (wrong []string) {
	var way rtnl.Way
	if err := p.node.Do(rtnl.GetWay(f.to, netip.Addr{}, 0, &way)); err != nil {
		return []string{fmt.Sprintf("the node has no route to %s (%s)", f.to, kernelSays(err))}
	}
	if way.Local {
		return nil
	}
	names, err := p.node.Names(way.Index)
	if err != nil || len(names) == 0 {
		return nil
	}
	if state := state(p.node, names[0]); state != "" {
		wrong = append(wrong, "the node's "+names[0]+" "+state)
	}
	hop := f.to
	if way.Gateway.IsValid() {
		hop = way.Gateway
	}
	var state string
	if err := p.node.Do(rtnl.NeighbourState(hop, way.Index, &state)); err == nil && (state == "FAILED" || state == "INCOMPLETE") {
		wrong = append(wrong, fmt.Sprintf("neighbour %s dev %s is %s: nobody there answers ARP or neighbour solicitations", hop, names[0], state))
	}
	if f.toPod == nil {
		return wrong
	}
	at := p.pod
	if f.inPod { // to another pod
		if at, err = ns.OpenSoon(f.toPod.Netns); err != nil {
			return append(wrong, err.Error())
		}
		defer at.Close()
	}
	source := f.from
	if !source.IsValid() {
		source = way.Source
	}
	if !source.IsValid() {
		return wrong
	}
	return append(wrong, p.inside(ctx, at, *f.toPod, source)...)
}

// mute returns the sysctls that keep the node from answering echos.
func (p *prober) mute(ipv6 bool) (on []string) {
	names := []string{"ipv4/icmp_echo_ignore_all"}
	if ipv6 {
		names = []string{"ipv6/icmp/echo_ignore_all"}
	}
	for _, name := range names {
		if value, err := ns.Sysctl(name); err == nil && value != "0" {
			on = append(on, "net."+strings.ReplaceAll(name, "/", ".")+" = "+value)
		}
	}
	if len(on) == 0 {
		on = append(on, "why, no sysctl says")
	}
	return on
}
