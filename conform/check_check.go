package conform

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// checkChecks are about CHECK.
var checkChecks = []Check{
	{
		Name: "check/well", Level: Must, Spec: "CNI 1.1.0, section 2, CHECK; 0.4.0, Parameters, CHECK",
		Says: "CHECK right after ADD succeeds",
		Each: true, Since: "0.4.0", Needs: []string{"add/result"},
		run: func(t *T) {
			t.checkable()
			a := t.Attached()
			if got := t.Check(a); !got.OK() {
				t.Failf("CHECK right after ADD fails: %s%s", got, t.blame(a, got))
			}
		},
	},
	{
		Name: "check/link-gone", Level: Should, Spec: "CNI 1.1.0, section 2, CHECK: a missing interface; 0.4.0, Parameters, CHECK",
		Says:  "CHECK fails if the container's interface is gone",
		Since: "0.4.0", Needs: []string{"add/error-form", "check/well"},
		run: func(t *T) { t.checkAfter(loseLink) },
	},
	{
		Name: "check/address-gone", Level: Should, Spec: "CNI 1.1.0, section 2, CHECK: a missing address; 0.4.0, Parameters, CHECK",
		Says:  "CHECK fails if an address of the result is not on the container's interface",
		Since: "0.4.0", Needs: []string{"check/link-gone"},
		run: func(t *T) { t.checkAfter(loseAddress) },
	},
	{
		Name: "check/route-gone", Level: Should, Spec: "CNI 1.1.0, section 2, CHECK: a missing route; 0.4.0, Parameters, CHECK",
		Says:  "CHECK fails if a route of the result is not in the container",
		Since: "0.4.0", Needs: []string{"check/link-gone"},
		run: func(t *T) { t.checkAfter(loseRoute) },
	},
}

// checkable ends the check if the list forbids CHECK.
func (t *T) checkable() {
	if t.list().DisableCheck {
		t.Unsupportedf(`the list has "disableCheck": runtimes must not call CHECK`)
	}
}

// damage is the loss of something that a container had.
type damage struct {
	what   string
	healed func(*podLink) bool // reports whether somebody has put it back
	has    func(*result) bool  // reports whether a result has it
}

// checkAfter calls hurt, which does damage, and then executes CHECK, which has to find the damage. Some
// daemons watch for damage, and heal it before CHECK looks: then CHECK need not find the damage.
func (t *T) checkAfter(hurt func(*T, *Attachment, *result, *podLink) damage) {
	t.checkable()
	a := t.Attached()
	l := t.linkNow(a)
	if l == nil {
		t.Unsupportedf("the plugins make no %s in the network namespace", a.Ifname)
	}
	d := hurt(t, a, t.mustResult(a), l)
	got := t.Check(a)
	if now := t.linkNow(a); got.OK() && now != nil && d.healed(now) {
		t.Notef("CHECK succeeds after %s, because the damage is healed by now", d.what)
		return
	}
	if got.OK() {
		t.Failf("CHECK after %s succeeds, although %s made what is lost", d.what, t.maker(a, d.has))
		return
	}
	t.wantError(got, "CHECK after "+d.what)
}

// maker names the plugin of the list whose result is the first that has something; the list's first plugin if no result has it.
func (t *T) maker(a *Attachment, has func(*result) bool) string {
	return t.list().Plugins[t.makerOf(a, has)].Type
}

// makerOf is maker by the plugin's place in the list.
func (t *T) makerOf(a *Attachment, has func(*result) bool) int {
	return max(0, slices.IndexFunc(a.steps, func(raw json.RawMessage) bool {
		r, err := readResult(raw)
		return err == nil && has(r)
	}))
}

// blame says which plugin is at fault if CHECK of another one fails because of what a later plugin has made of the result; "" if none is.
func (t *T) blame(a *Attachment, got Answer) string {
	for i := len(a.steps) - 1; i > got.Call.plugin; i-- {
		if t.Exec(t.Call("CHECK", got.Call.plugin, a, a.steps[i-1])).OK() {
			return fmt.Sprintf("; with the result as it was before %[1]s it succeeds, so what %[1]s makes of the result is not so", t.list().Plugins[i].Type)
		}
	}
	return ""
}

// loseLink is `ip link delete net0`, in the pod.
func loseLink(t *T, a *Attachment, r *result, l *podLink) damage {
	t.must(a.Pod.Do(func() error {
		err := netlink.LinkDel(l.Link)
		if errors.Is(err, unix.EOPNOTSUPP) { // the kernel cannot delete this device
			// ip link set net0 name gone0
			err = errors.Join(netlink.LinkSetDown(l.Link), netlink.LinkSetName(l.Link, "gone0"))
		}
		return err
	}))
	return damage{"the deletion of " + a.Ifname, func(now *podLink) bool {
		return !slices.ContainsFunc(r.addresses(r.of(a)), func(addr net.IP) bool { return now.has(addr) == nil })
	}, func(of *result) bool { return of.of(a) >= 0 }}
}

// loseAddress replaces an address by another address, and restores the routes. The kernel removes
// the routes with the address, and CHECK could find the missing routes instead.
func loseAddress(t *T, a *Attachment, r *result, l *podLink) damage {
	var lost *netlink.Addr
	for _, addr := range r.addresses(r.of(a)) {
		if lost = l.has(addr); lost != nil {
			break
		}
	}
	if lost == nil {
		t.Unsupportedf("the result has no address of %s", a.Ifname)
	}
	other := netlink.Addr{IPNet: &net.IPNet{IP: another(lost.IP), Mask: lost.Mask}, Flags: unix.IFA_F_NODAD}
	t.must(a.Pod.Do(func() error {
		// ip address delete ADDRESS dev net0; ip address add OTHER dev net0
		if err := errors.Join(netlink.AddrDel(l.Link, lost), netlink.AddrAdd(l.Link, &other)); err != nil {
			return fmt.Errorf("replacing %s: %w", lost.IPNet, err)
		}
		for _, route := range l.routes {
			if route.Protocol == unix.RTPROT_KERNEL {
				continue
			}
			if route.Src != nil && route.Src.Equal(lost.IP) {
				route.Src = nil
			}
			// ip route replace ...
			_ = netlink.RouteReplace(&route) // may fail: the address is gone in any case
		}
		return nil
	}))
	what := fmt.Sprintf("the replacement of %s on %s by %s", lost.IPNet, a.Ifname, other.IPNet)
	return damage{what, func(now *podLink) bool { return now.has(lost.IP) != nil }, func(of *result) bool { return of.gives(lost.IP) }}
}

// another returns an address near addr.
func another(addr net.IP) net.IP {
	other := append(net.IP{}, addr...)
	other[len(other)-1] ^= 0x40
	return other
}

// loseRoute is `ip route delete`, in the pod, of the first route in the result that exists.
func loseRoute(t *T, a *Attachment, r *result, l *podLink) damage {
	if len(r.Routes) == 0 {
		t.Unsupportedf("the result has no routes")
	}
	for _, item := range r.Routes {
		route := l.route(item)
		if route == nil {
			continue
		}
		t.must(a.Pod.Do(func() error {
			if err := netlink.RouteDel(route); err != nil {
				return fmt.Errorf("deleting the route to %s: %w", item.Dst, err)
			}
			return nil
		}))
		return damage{"the deletion of the route to " + item.Dst, func(now *podLink) bool { return now.route(item) != nil }, func(of *result) bool { return of.routesTo(item) }}
	}
	t.Unsupportedf("none of the routes of the result is on %s", a.Ifname)
	return damage{}
}
