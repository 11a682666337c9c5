package conform

import (
	"errors"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/berth-net/berth/conform/oracle"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// judgeForm judges whether a plugin's result has the form of its version.
func (t *T) judgeForm(plugin string, r *result) {
	if r.Version != t.Version {
		t.Failf("the result of %s is in cniVersion %q, the request in %s", plugin, r.Version, t.Version)
	}
	for _, one := range r.IPs {
		t.judgeIP(plugin, one)
	}
	for _, one := range r.Routes {
		if _, _, err := net.ParseCIDR(one.Dst); err != nil {
			t.Failf("a route of the result of %s goes to %q, which is not a prefix", plugin, one.Dst)
		}
		if one.GW != "" && net.ParseIP(one.GW) == nil {
			t.Failf("a route of the result of %s goes by %q, which is not an address", plugin, one.GW)
		}
	}
	for _, one := range r.DNS.Nameservers {
		if net.ParseIP(one) == nil {
			t.Failf("a nameserver of the result of %s is %q, which is not an address", plugin, one)
		}
	}
}

func (t *T) judgeIP(plugin string, one ip) {
	addr, _, err := net.ParseCIDR(one.Address)
	if err != nil {
		t.Failf("an address of the result of %s is %q, not an address with its prefix length", plugin, one.Address)
		return
	}
	family := "4"
	if addr.To4() == nil {
		family = "6"
	}
	switch versioned := older(t.Version, "1.0.0"); {
	case versioned && one.Version == nil:
		t.Failf(`address %s in the result of %s lacks its "version", as %s has it`, one.Address, plugin, t.Version)
	case versioned && *one.Version != family:
		t.Failf("address %s in the result of %s has the wrong version, IPv%s", one.Address, plugin, *one.Version)
	case !versioned && one.Version != nil:
		t.Notef(`address %s in the result of %s has a "version", which CNI has no more since 1.0.0`, one.Address, plugin)
	}
	if gw := net.ParseIP(one.Gateway); one.Gateway != "" && (gw == nil || (gw.To4() == nil) != (family == "6")) {
		t.Failf("the gateway of %s in the result of %s is %q, which is not an address of its family", one.Address, plugin, one.Gateway)
	}
}

// judgeTruth compares the result with what is in the container and on the node.
func (t *T) judgeTruth(a *Attachment, r *result) {
	l := t.linkNow(a)
	if l == nil {
		t.noInterface(a)
		return
	}
	at := r.of(a)
	if at < 0 {
		t.Failf("the result does not list the container's interface %s with its sandbox: %s", a.Ifname, short(a.Result))
	} else {
		t.judgeInterface(a, r.Interfaces[at], l)
	}
	for _, one := range r.IPs {
		if one.Interface != nil && (*one.Interface < 0 || *one.Interface >= len(r.Interfaces)) {
			t.Failf("the result gives address %s to interface %d, but lists only %d", one.Address, *one.Interface, len(r.Interfaces))
		}
	}
	if at >= 0 {
		t.judgeAddresses(a, r, at, l)
	}
	t.judgeHost(r)
}

// noInterface judges an ADD that made no interface with the name that it was given. If the plugins make none at all, as loopback does, the check
// ends: there is nothing that it could be about. The links that a fresh network namespace has are the kernel's: lo, and those of tunnels such as tunl0, if
// the kernel has their modules (sysctl net.core.fb_tunnels_only_for_init_net).
func (t *T) noInterface(a *Attachment) {
	fresh, err := t.Node.Pod()
	t.must(err)
	own, err := fresh.links()
	t.must(errors.Join(err, fresh.Remove()))
	others, err := a.Pod.links()
	t.must(err)
	others = slices.DeleteFunc(others, func(name string) bool { return slices.Contains(own, name) })
	if len(others) == 0 {
		t.Unsupportedf("the plugins make no interface in the network namespace")
	}
	t.Failf("after ADD the container has no interface %s, but it has %s", a.Ifname, strings.Join(others, ", "))
}

// judgeInterface compares an interface as the result lists it with the real one.
func (t *T) judgeInterface(a *Attachment, listed iface, l *podLink) {
	if listed.Sandbox != a.Pod.Path {
		if sameFile(listed.Sandbox, a.Pod.Path) {
			t.Notef("the result says sandbox %s; it should say CNI_NETNS, %s", listed.Sandbox, a.Pod.Path)
		} else {
			t.Failf("the result says sandbox %q for %s, but CNI_NETNS is %s", listed.Sandbox, a.Ifname, a.Pod.Path)
		}
	}
	is := l.Attrs().HardwareAddr
	switch mac, err := net.ParseMAC(listed.MAC); {
	case listed.MAC == "" && len(is) > 0:
		t.Notef("the result lacks the MAC of %s, whose MAC is %s", a.Ifname, is)
	case listed.MAC == "":
	case err != nil:
		t.Failf("the result says %q for the MAC of %s, which is not a MAC", listed.MAC, a.Ifname)
	case mac.String() != is.String():
		t.Failf("the result says MAC %s for %s, whose MAC is %s", mac, a.Ifname, is)
	}
}

// judgeAddresses compares the addresses of the container's interface with the addresses
// that the result lists. at is the index of the interface in the result.
func (t *T) judgeAddresses(a *Attachment, r *result, at int, l *podLink) {
	for _, one := range r.IPs {
		addr, prefix, err := net.ParseCIDR(one.Address)
		if err != nil || one.Interface != nil && *one.Interface != at {
			continue
		}
		has := l.has(addr)
		switch {
		case has == nil && one.Interface != nil:
			t.Failf("the result lists address %s of %s, but the interface does not have it", one.Address, a.Ifname)
		case has != nil && one.Interface == nil:
			t.Failf("%[2]s has address %[1]s, but the result does not say which interface has this address", one.Address, a.Ifname)
		case has != nil && has.Mask.String() != prefix.Mask.String():
			t.Notef("the result lists address %s of %s, but the interface has it as %s", one.Address, a.Ifname, has.IPNet)
		}
	}
	for _, has := range l.addrs {
		if has.Scope != int(netlink.SCOPE_UNIVERSE) || has.Flags&unix.IFA_F_PERMANENT == 0 {
			continue
		}
		if !r.gives(has.IP) {
			t.Failf("%s has address %s, which the result does not list", a.Ifname, has.IPNet)
		}
	}
}

// judgeHost looks on the host for the interfaces that the result lists as interfaces of the host.
func (t *T) judgeHost(r *result) {
	has := map[string]string{}
	t.must(t.Do(func() error {
		all, err := oracle.List(netlink.LinkList)
		for _, l := range all {
			has[l.Attrs().Name] = l.Attrs().HardwareAddr.String()
		}
		return err
	}))
	for _, one := range r.Interfaces {
		if one.Sandbox != "" || one.Socket != "" {
			continue
		}
		switch mac, ok := has[one.Name]; {
		case !ok:
			t.Failf("the result lists %s on the host, but the host has no such interface", one.Name)
		case one.MAC != "" && !strings.EqualFold(one.MAC, mac):
			t.Notef("the result says MAC %s for %s on the host, whose MAC is %s", one.MAC, one.Name, mac)
		}
	}
}

// lists reports whether the result has an interface with the same name and the same sandbox.
func (r *result) lists(one iface) bool {
	return slices.ContainsFunc(r.Interfaces, func(i iface) bool { return i.Name == one.Name && i.Sandbox == one.Sandbox })
}

// gives reports whether the result has an address, on any interface.
func (r *result) gives(addr net.IP) bool {
	return slices.ContainsFunc(r.IPs, func(one ip) bool {
		listed, _, err := net.ParseCIDR(one.Address)
		return err == nil && listed.Equal(addr)
	})
}

// routesTo reports whether the result has a route to the destination of item.
func (r *result) routesTo(item routeItem) bool {
	return slices.ContainsFunc(r.Routes, func(one routeItem) bool { return one.Dst == item.Dst })
}

func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
