package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// cached is what libcni keeps of a pod's network.
type cached struct {
	ContainerID string
	CniArgs     [][2]string
	Result      json.RawMessage
}

// caches returns what libcni keeps of a network, by the pods' names.
func (n *node) caches(network string) map[string]cached {
	n.t.Helper()
	files, err := filepath.Glob(filepath.Join(n.disk, "var/lib/cni/results", network+"-*"))
	must(n.t, err)
	all := map[string]cached{}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		must(n.t, err)
		var one cached
		must(n.t, json.Unmarshal(raw, &one))
		for _, arg := range one.CniArgs {
			if arg[0] == "K8S_POD_NAME" {
				all[arg[1]] = one
			}
		}
	}
	return all
}

// inside opens the network namespace of a pod, and returns its path on the node, too.
func (n *node) inside(was cached) (at *ns.Netns, path string) {
	n.t.Helper()
	var result struct{ Interfaces []struct{ Sandbox string } }
	must(n.t, json.Unmarshal(was.Result, &result))
	for _, i := range result.Interfaces {
		path = cmp.Or(path, i.Sandbox)
	}
	at, err := ns.Open(fmt.Sprintf("/proc/%d/root/run/netns/%s", n.first.Process.Pid, filepath.Base(path)))
	must(n.t, err)
	return at, path
}

// linkOrder returns the names of a pod's links in the order in which they were made.
func linkOrder(t testing.TB, at *ns.Netns) (names []string) {
	t.Helper()
	must(t, at.Do(func() error {
		links, err := netlink.LinkList()
		slices.SortFunc(links, func(a, b netlink.Link) int { return a.Attrs().Index - b.Attrs().Index })
		for _, l := range links {
			names = append(names, l.Attrs().Name)
		}
		return err
	}))
	return names
}

// reservations returns the addresses that host-local has given, with what stands for each, NETWORK.INTERFACE, by the containers' ids. Which
// address a pod gets is a matter of which pod comes first.
func (n *node) reservations() map[string]map[string]string {
	n.t.Helper()
	files, err := filepath.Glob(filepath.Join(n.disk, "var/lib/cni/networks/*/*[.:]*"))
	must(n.t, err)
	all := map[string]map[string]string{}
	for _, f := range files {
		address, network := filepath.Base(f), filepath.Base(filepath.Dir(f))
		if net.ParseIP(address) == nil {
			continue // last_reserved_ip.0
		}
		raw, err := os.ReadFile(f)
		must(n.t, err)
		of := append(strings.Fields(string(raw)), "", "")
		if all[of[0]] == nil {
			all[of[0]] = map[string]string{}
		}
		all[of[0]][address] = network + "." + of[1]
	}
	return all
}

// unplaced replaces these addresses in a text, but those that the pods ask for.
func unplaced(text string, addresses map[string]string) string {
	for address, stands := range addresses {
		if !strings.Contains(besidePods["args"].networks, `"`+address+`"`) {
			text = regexp.MustCompile(`\b`+regexp.QuoteMeta(address)+`\b`).ReplaceAllString(text, stands)
		}
	}
	return text
}
