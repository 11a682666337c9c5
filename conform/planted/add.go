package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// add attaches a pod. It first writes the lease, which has the link's name. So DEL finds all that
// ADD has made, however far ADD came.
func (c *call) add() (any, error) {
	switch {
	case c.DNS != nil && c.fault("dns-refused"): // which is allowed
		return nil, fail(codeField, "unsupported key dns: %v", c.DNS)
	case c.DNS != nil && c.fault("dns-fails"):
		return nil, fail(codeOurs, "the key dns: %v", c.DNS)
	}
	if c.fault("strays") {
		if err := stray(); err != nil {
			return nil, fail(codeIO, "writing elsewhere: %w", err)
		}
	}
	if c.fault("residue-after-failed-add") {
		if _, err := c.reserve(); err != nil {
			return nil, err
		}
	}
	if c.fault("id-kept-without-netns") {
		if err := c.stranger(); err != nil {
			return nil, err
		}
	}
	pod, err := os.Open(c.netns)
	if err != nil {
		return nil, fail(codeVariable, "CNI_NETNS: %w", err)
	}
	defer pod.Close()
	if err := c.vacant(pod); err != nil {
		if c.fault("table-at-failure") {
			err = errors.Join(err, setUpTable())
		}
		return nil, err
	}
	old, err := c.find()
	if err != nil {
		return nil, err
	}
	if old != nil {
		if there, err := linkExists(old.Link); err != nil || there {
			return nil, fail(codeExists, "%s of %s is attached already (%v)", c.ifname, c.id, err)
		}
		if err := c.undo(old); err != nil { // from before a reboot, or from an ADD that was killed
			return nil, err
		}
	}
	l, err := c.attach(pod)
	if err != nil {
		return nil, err
	}
	c.plant(l)
	return c.result(l, pod)
}

// attach makes all parts of an attachment. If it fails, it leaves none of them.
func (c *call) attach(pod *os.File) (*lease, error) {
	if err := c.portsFree(); err != nil {
		return nil, err
	}
	extra := ""
	if c.fault("kill-unsafe") {
		extra = makeExtra()
	}
	l, err := c.reserve()
	if err != nil {
		return nil, err
	}
	if extra != "" {
		l.Extra = extra
		if err := c.keep(l); err != nil {
			return nil, err
		}
	}
	if err = c.makeLink(l, pod); err == nil {
		err = c.configure(l, pod)
	}
	if err == nil {
		err = c.mapPorts(l)
	}
	if err != nil {
		if bad := c.undo(l); bad != nil {
			err = fmt.Errorf("%w; undoing it: %w", err, bad)
		}
		return nil, err
	}
	return l, nil
}

// makeLink is `ip link add LINK type veth peer name IFNAME netns POD`.
func (c *call) makeLink(l *lease, pod *os.File) error {
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: l.Link}, PeerName: c.ifname, PeerNamespace: netlink.NsFd(pod.Fd()),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("making %s: %w", l.Link, err)
	}
	return nil
}

// vacant returns an error if the pod has already an interface of the wanted name (CNI 1.1, section 2, ADD).
func (c *call) vacant(pod *os.File) error {
	return inside(pod, func() error {
		if c.fault("default-route-insisted") {
			if all, err := netlink.RouteList(nil, netlink.FAMILY_V4); err != nil || len(all) > 0 {
				return fail(codeExists, "the container has routes (%v)", err)
			}
		}
		there, err := linkExists(c.ifname)
		switch {
		case err != nil || !there:
			return err
		case c.fault("existing-interface-taken"):
			return deleteLink(c.ifname)
		}
		return fail(codeExists, "the container has an interface %s", c.ifname)
	})
}

// result returns the result of ADD (CNI 1.1, section 5, "ADD Success").
func (c *call) result(l *lease, pod *os.File) (any, error) {
	type object = map[string]any
	host := object{"name": l.Link}
	ours := object{"name": c.ifname, "sandbox": c.netns}
	if c.fault("result-without-sandbox") {
		delete(ours, "sandbox")
	}
	var err error
	if host["mac"], err = mac(l.Link); err != nil {
		return nil, err
	}
	def := object{"dst": "0.0.0.0/0", "gw": c.gateway().String()}
	if err := inside(pod, func() error {
		link, err := netlink.LinkByName(c.ifname)
		if err != nil {
			return err
		}
		ours["mac"] = link.Attrs().HardwareAddr.String()
		if c.Version == "1.1.0" {
			ours["mtu"], def["priority"] = link.Attrs().MTU, link.Attrs().Index // configure
		}
		return nil
	}); err != nil {
		return nil, err
	}
	ip := object{"address": l.Address.String() + "/32", "gateway": c.gateway().String(), "interface": 1}
	if c.Version == "0.4.0" {
		ip["version"] = "4"
	}
	if c.fault("result-other-address") {
		ip["address"] = l.Address.Next().String() + "/32"
	}
	if c.fault("result-wrong-index") {
		ip["interface"] = 7
	}
	out := object{
		"cniVersion": c.Version, "interfaces": []object{host, ours}, "ips": []object{ip},
		"routes": []object{def}, "dns": object{},
	}
	if c.DNS != nil {
		out["dns"] = c.DNS
	}
	switch {
	case c.fault("dns-reordered") && c.DNS != nil:
		out["dns"] = reordered(c.DNS)
	case c.fault("route-listed"):
		out["routes"] = []object{def, {"dst": "203.0.113.0/24"}}
	case c.fault("mtu-lied") && c.Version == "1.1.0":
		ours["mtu"] = 1300
	case c.fault("priority-lied") && c.Version == "1.1.0":
		def["priority"] = 77
	case c.fault("socket-listed") && c.Version == "1.1.0": // that of a vhost-user interface, which the kernel has not
		out["interfaces"] = []object{host, ours, {"name": "vhost0", "socketPath": "/run/planted-vhost"}}
	case c.fault("wrong-version"):
		out["cniVersion"] = "0.3.1"
	case c.fault("result-without-interfaces"):
		delete(out, "interfaces")
		delete(ip, "interface")
	}
	return out, nil
}

// reordered returns the list's dns with the nameservers in reverse order.
func reordered(dns json.RawMessage) any {
	var all map[string]any
	if json.Unmarshal(dns, &all) != nil {
		return dns
	}
	if servers, ok := all["nameservers"].([]any); ok {
		slices.Reverse(servers)
	}
	return all
}

// addChained adds a rule for the address that the plugin before this one has given to the pod.
func (c *call) addChained() (any, error) {
	prev, err := c.previous()
	if err != nil {
		return nil, err
	}
	l := &lease{Network: c.Name, ID: c.id, Ifname: c.ifname, Address: prev[0].Addr(), Chained: true}
	if err := c.keep(l); err != nil {
		return nil, err
	}
	if err := c.addRule(l); err != nil {
		return nil, err
	}
	var whole map[string]any
	if err := json.Unmarshal(c.Prev, &whole); err != nil {
		return nil, fail(codeDecode, "decoding prevResult: %w", err)
	}
	if c.fault("prev-result-dropped") {
		delete(whole, "routes")
	}
	if c.fault("route-lied") {
		whole["routes"] = []map[string]any{{"dst": "203.0.113.0/24"}}
	}
	return whole, nil
}

// need plays a plugin that keeps a file in /opt: it has no fault, but the suite lets nobody write there unless it is told to. The error, a log, or only a path
// says so.
func (c *call) need() error {
	if c.verb != "ADD" || !strings.HasPrefix(c.wrong, "needs-opt") {
		return nil
	}
	const path = "/opt/planted/file"
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	switch {
	case err == nil:
		return nil
	case c.fault("needs-opt"):
		return fail(codeOurs, "keeping a file: %w", err)
	case c.fault("needs-opt-logged"):
		fmt.Fprintln(os.Stderr, err)
	}
	return fail(codeOurs, "cannot write %s", path)
}
