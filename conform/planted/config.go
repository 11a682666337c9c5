package main

import (
	"encoding/json"
	"net/netip"
	"os"
	"regexp"
	"strings"
)

// call is one execution (CNI 1.1, section 2).
type call struct {
	verb, id, netns, ifname string
	wrong                   string // the fault; "": none
	raw                     []byte // the configuration
	config
}

// config is the configuration that the runtime writes to the plugin's standard input.
type config struct {
	Name     string          `json:"name"`
	Version  string          `json:"cniVersion"`
	Subnet   string          `json:"subnet"`
	StateDir string          `json:"stateDir"`
	Chained  bool            `json:"chained"`
	DNS      json.RawMessage `json:"dns"`
	Prev     json.RawMessage `json:"prevResult"`
	Valid    *[]attachment   `json:"cni.dev/valid-attachments"`
	Old      []attachment    `json:"cni.dev/attachments"` // which an earlier specification had: only a fault reads it
	Args     json.RawMessage `json:"args"`
	IPAM     struct {
		Type string `json:"type"` // "": none
	} `json:"ipam"`
	Runtime struct {
		Bandwidth    bandwidth     `json:"bandwidth"`
		PortMappings []portMapping `json:"portMappings"`
	} `json:"runtimeConfig"`

	subnet netip.Prefix
}

// bandwidth has rates in bits a second and bursts in bits. A rate of 0 is no limit.
type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate"`
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

type attachment struct {
	ID     string `json:"containerID"`
	Ifname string `json:"ifname"`
}

func (c *call) fault(name string) bool { return c.wrong == name }

// name matches the names of networks and containers (CNI 1.1, sections 1 and 2).
var name = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// check checks that a call has the variables and the keys that its verb needs (CNI 1.1, section 2).
func (c *call) check() error {
	var err error
	switch {
	case !name.MatchString(c.Name):
		return fail(codeConfig, "name %q is no name of a network", c.Name)
	case c.StateDir == "":
		return fail(codeConfig, "stateDir is missing")
	}
	if c.Args != nil && c.fault("args-refused") {
		return fail(codeConfig, "args are not understood")
	}
	if c.subnet, err = netip.ParsePrefix(c.Subnet); err != nil || !c.subnet.Addr().Is4() {
		return fail(codeConfig, "subnet %q is no IPv4 subnet", c.Subnet)
	}
	switch c.verb {
	case "ADD", "CHECK":
		if err := c.checkAttachment(true); err != nil {
			return err
		}
		if _, err := os.Stat(c.netns); err != nil && !c.fault("residue-after-failed-add") {
			return fail(codeVariable, "CNI_NETNS: %w", err)
		}
		if c.verb == "CHECK" && c.Prev == nil {
			return fail(codeConfig, "prevResult is missing")
		}
	case "DEL":
		if c.ifname == "" && c.fault("del-needs-no-ifname") {
			return nil
		}
		return c.checkAttachment(c.fault("del-needs-netns"))
	case "STATUS", "GC":
		if c.Version != "1.1.0" {
			return fail(codeVersion, "%s came with cniVersion 1.1.0; this is %s", c.verb, c.Version)
		}
		if c.verb == "GC" && c.Valid == nil {
			return fail(codeConfig, "cni.dev/valid-attachments is missing")
		}
	default:
		return fail(codeVariable, "CNI_COMMAND %q is unknown", c.verb)
	}
	return nil
}

func (c *call) checkAttachment(needsNetns bool) error {
	switch {
	case !name.MatchString(c.id):
		return fail(codeVariable, "CNI_CONTAINERID %q is no ID", c.id)
	case c.ifname != "" && c.fault("linkless"): // which uses no name
	case len(c.ifname) > 14 && c.fault("short-names"): // which it cannot use
		return fail(codeVariable, "CNI_IFNAME %q has more than 14 bytes", c.ifname)
	case c.ifname == "" || len(c.ifname) > 15 || c.ifname == "." || c.ifname == ".." || strings.ContainsAny(c.ifname, "/: \t\n"):
		return fail(codeVariable, "CNI_IFNAME %q is no name of an interface", c.ifname)
	case needsNetns && c.netns == "":
		return fail(codeVariable, "CNI_NETNS is not set")
	}
	if c.fault("ifname-ignored") {
		c.ifname = "eth0"
	}
	return nil
}
