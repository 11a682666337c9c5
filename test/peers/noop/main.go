// Command noop is the floor that every plugin written in Go is measured
// against: it does what the CNI project's own plugin skeleton does (reads
// environment and stdin, checks them, prints a result) and nothing else.
package main

import (
	"encoding/json"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

func main() {
	nothing := func(*skel.CmdArgs) error { return nil }
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: nothing, Check: nothing, GC: nothing, Status: nothing},
		version.All, "noop: answers and does nothing")
}

// add prints a result of the shape that a plugin with one address prints.
func add(args *skel.CmdArgs) error {
	var conf types.PluginConf
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return fmt.Errorf("reading configuration: %w", err)
	}
	return types.PrintResult(&current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{{Name: args.IfName, Mac: "02:00:00:00:00:01", Sandbox: args.Netns}},
		IPs: []*current.IPConfig{{
			Interface: current.Int(0),
			Address:   net.IPNet{IP: net.IPv4(192, 0, 2, 2), Mask: net.CIDRMask(32, 32)},
		}},
	}, conf.CNIVersion)
}
