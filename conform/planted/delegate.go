package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// delegate executes a verb of the IPAM plugin, as the specification has it (CNI 1.1, section 4).
func (c *call) delegate(verb string) ([]byte, error) {
	for dir := range strings.SplitSeq(os.Getenv("CNI_PATH"), ":") {
		program := filepath.Join(dir, c.IPAM.Type)
		if _, err := os.Stat(program); err != nil {
			continue
		}
		cmd := exec.Command(program)
		cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb)
		if c.fault("delegate-without-args") {
			cmd.Env = slices.DeleteFunc(cmd.Env, func(e string) bool { return strings.HasPrefix(e, "CNI_ARGS=") })
		}
		cmd.Stdin = bytes.NewReader(c.raw)
		if !c.fault("delegate-stderr-lost") {
			cmd.Stderr = os.Stderr
		}
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s of %s: %w: %s", verb, c.IPAM.Type, err, out)
		}
		return out, nil
	}
	return nil, fail(codeConfig, "there is no %s in CNI_PATH", c.IPAM.Type)
}

// pass executes a verb of the IPAM plugin, if there is one.
func (c *call) pass(verb string) error {
	if c.IPAM.Type == "" {
		return nil
	}
	_, err := c.delegate(verb)
	return err
}

// borrow has the IPAM plugin give an address, and writes a lease for it.
func (c *call) borrow() (*lease, error) {
	out, err := c.delegate("ADD")
	if err != nil {
		if !c.fault("delegate-not-undone") {
			_ = c.pass("DEL") // ADD fails in any case
		}
		return nil, err
	}
	var result struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(out, &result); err != nil || len(result.IPs) != 1 {
		return nil, fail(codeDecode, "the result of %s is %q (%v)", c.IPAM.Type, out, err)
	}
	l := &lease{Network: c.Name, ID: c.id, Ifname: c.ifname, Link: c.hostLink(), Address: result.IPs[0].Address.Addr(), Ports: c.Runtime.PortMappings}
	if c.fault("ipam-address-ignored") {
		l.Address = l.Address.Next()
	}
	return l, c.keep(l)
}

// ofIPAM begins the names under which the leases of the IPAM plugin are kept, beside those of the plugin that calls it.
const ofIPAM = "ipam-"

// serve is this program as an IPAM plugin, under the name planted-ipam. The plugin that calls it holds the lock.
func (c *call) serve() (any, error) {
	c.Name, c.IPAM.Type = ofIPAM+c.Name, ""
	switch c.verb {
	case "STATUS":
		return nil, nil
	case "GC":
		return nil, c.gc()
	}
	old, err := c.find()
	if err != nil {
		return nil, err
	}
	switch {
	case c.verb == "CHECK" && old == nil:
		return nil, fail(codeUnhealthy, "%s of %s has no address", c.ifname, c.id)
	case c.verb == "DEL" && old != nil:
		return nil, c.free(old)
	case c.verb != "ADD":
		return nil, nil
	}
	if old == nil {
		if old, err = c.reserve(); err != nil {
			return nil, err
		}
	}
	ip := map[string]any{"address": old.Address.String() + "/32"}
	if c.Version == "0.4.0" {
		ip["version"] = "4"
	}
	out := map[string]any{"cniVersion": c.Version, "ips": []any{ip}, "dns": map[string]any{}}
	if c.fault("ipam-with-interfaces") {
		out["interfaces"] = []any{map[string]any{"name": c.ifname, "sandbox": c.netns}}
	}
	return out, nil
}
