package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/result"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/server"
)

// Check compares an attachment with its prevResult and with the world, on the
// host and in the pod, and names all that differs (CNI 1.1, section 4, CHECK).
func (a *Agent) Check(ctx context.Context, req api.AddRequest, w server.When) error {
	add, err := a.parse(req, w)
	if err != nil {
		return err
	}
	if add.conf.PrevResult == nil {
		return cni.Errorf(cni.CodeConfig, "prevResult is missing", "CHECK of %s compares with the result of ADD", add.record.Key)
	}
	prev, bad := result.Parse(add.conf.PrevResult, add.conf.Version)
	if bad != nil {
		return bad
	}
	var e *entry
	for _, c := range a.index.key(add.record.Key) {
		if c.owner.Wanted() {
			e = c
		}
	}
	if e == nil {
		return cni.Errorf(cni.CodeUnknown, "no such attachment", "%s is not attached", add.record.Key)
	}
	e = e.seenIn(add.record.Netns)
	var differ []string
	if !e.record.Netns.Same(add.record.Netns) {
		differ = append(differ, fmt.Sprintf("it was attached to another network namespace, at %s", e.record.Netns.Path))
	}
	differ = append(differ, againstResult(e, prev)...)
	for _, err := range a.compare(ctx, e) {
		differ = append(differ, err.Error())
	}
	if len(differ) > 0 {
		return cni.Errorf(cni.CodeCheck, fmt.Sprintf("attachment %s differs", e.owner.ID), "%s", strings.Join(differ, "\n"))
	}
	return nil
}

// compare says what of an attachment is not as it should be: its holds, the
// inside of its pod, and what the node has for all pods of its pool.
func (a *Agent) compare(ctx context.Context, e *entry) []error {
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	note(a.engine.Verify(ctx, e.owner))
	if h, ok := e.owner.Find(link.KindName); ok {
		note(a.links.VerifyPod(ctx, h))
	}
	for _, name := range a.reliesOn(e) {
		id, _ := a.ledger.Holder(name)
		if o, ok := a.ledger.Owner(id); ok && o.Wanted() {
			note(a.engine.Verify(ctx, o))
		} else {
			note(fmt.Errorf("%s %s: %w: the agent does not hold it", name.Space, name.Name, hold.ErrGone))
		}
	}
	return errs
}

// reliesOn returns the names of the agent's own owners that an attachment needs:
// that of the table by which it is cut off, and those of its addresses' CIDRs.
func (a *Agent) reliesOn(e *entry) []hold.Name {
	names := []hold.Name{egressName}
	for _, p := range a.Pools() {
		for _, c := range p.CIDRs {
			cidr, err := netip.ParsePrefix(c.CIDR)
			has := func(name string) bool {
				addr, e := netip.ParseAddr(name)
				return err == nil && e == nil && cidr.Contains(addr)
			}
			if slices.ContainsFunc(e.owner.NamesIn(ipam.Space), has) {
				names = append(names, cidrName(cidr))
			}
		}
	}
	return names
}

// againstResult says what a prevResult has otherwise than the record.
func againstResult(e *entry, prev *types100.Result) []string {
	want, err := attachment.Result(e.owner, e.record)
	if err != nil {
		return []string{err.Error()}
	}
	var differ []string
	for _, ip := range want.IPs {
		if !hasAddress(prev, ip) {
			differ = append(differ, fmt.Sprintf("prevResult lacks the address %s", ip.Address.String()))
		}
	}
	for _, i := range want.Interfaces {
		if len(prev.Interfaces) > 0 && !hasInterface(prev, i) { // 0.1.0 and 0.2.0 have none
			differ = append(differ, fmt.Sprintf("prevResult lacks the interface %s (%s)", i.Name, i.Mac))
		}
	}
	for _, r := range want.Routes {
		has := func(have *types.Route) bool { return have.Dst.String() == r.Dst.String() && have.GW.Equal(r.GW) }
		if !slices.ContainsFunc(prev.Routes, has) {
			differ = append(differ, fmt.Sprintf("prevResult lacks the route %s via %s", r.Dst.String(), r.GW))
		}
	}
	return differ
}

func hasAddress(res *types100.Result, want *types100.IPConfig) bool {
	for _, ip := range res.IPs {
		if ip.Address.IP.Equal(want.Address.IP) {
			return true
		}
	}
	return false
}

func hasInterface(res *types100.Result, want *types100.Interface) bool {
	for _, i := range res.Interfaces {
		if i.Name == want.Name && strings.EqualFold(i.Mac, want.Mac) && (i.Sandbox == "") == (want.Sandbox == "") {
			return true
		}
	}
	return false
}

// seenIn is an attachment whose pod was not found when it was adopted, with the
// network namespace that a CHECK of it names: that has to have its interface.
func (e *entry) seenIn(netns ns.Ref) *entry {
	if e.record.KnowsNetns() {
		return e
	}
	at := &entry{attachment.In(netns, e.owner), e.record}
	at.record.Netns = netns
	return at
}
