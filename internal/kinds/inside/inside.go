// Package inside has what kinds share whose interface makes a pod a host of a network that the node is on: what the interface has inside the pod,
// its addresses, routes and sysctls. It is no kind: such an interface is a hold of kind macvlan or bridgeport.
package inside

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// Most is how many items of a list in a pod the agent looks at. A pod can make its lists as long as it likes.
const Most = 1024

// Face is a pod's interface, as its spec has it.
type Face struct {
	Ifname    string         // in the pod
	Addresses []netip.Prefix // the pod's, each with the length of its network's prefix
	Routes    []Route        // besides those to the networks of the addresses
}

// Route is a route of the pod by its interface.
type Route struct {
	Dst     netip.Prefix `json:"dst"`
	Gateway netip.Addr   `json:"gateway,omitzero"` // zero: Dst is on the interface's network
}

// Check refuses addresses and routes that the kernel would refuse only after the interface is made, or would take for something else.
func (f Face) Check() error {
	for _, a := range f.Addresses {
		if !a.IsValid() || a.Addr().Is4In6() || a.Addr().Zone() != "" {
			return fmt.Errorf("address %s: want plain IPv4 or IPv6 with the length of its prefix", a)
		}
	}
	for _, r := range f.Routes {
		if !r.Dst.IsValid() || r.Dst != r.Dst.Masked() || r.Gateway.IsValid() && r.Gateway.Is4() != r.Dst.Addr().Is4() {
			return fmt.Errorf("route to %s by %s: want a network, and a gateway of its family or none", r.Dst, r.Gateway)
		}
	}
	return nil
}

// has reports whether the pod has an address of IPv6 or, with false, of IPv4.
func (f Face) has(ipv6 bool) bool {
	return slices.ContainsFunc(f.Addresses, func(a netip.Prefix) bool { return a.Addr().Is6() == ipv6 })
}

// routes returns all routes of the pod by its interface: first those to the networks of its addresses.
func (f Face) routes(index int) (all []rtnl.Route) {
	for _, a := range f.Addresses {
		r := rtnl.Route{Dst: a.Masked(), Index: index}
		if !a.IsSingleIP() && !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	for _, r := range f.Routes {
		all = append(all, rtnl.Route{Dst: r.Dst, Gateway: r.Gateway, Index: index})
	}
	return all
}

// Pod is a pod's network namespace while a function of a kind is in it.
type Pod struct {
	At   *ns.Netns
	Conn *rtnl.Conn
}

// Enter opens a pod's network namespace. deletions sends the requests that delete links there (rtnl.Conn.DeleteBy); nil: the Conn itself. If
// the namespace is gone the error is ns.ErrGone; if its path hangs, ns.ErrHangs. After the end of ctx nothing works in the pod any more.
func Enter(ctx context.Context, pod ns.Ref, deletions rtnl.Sender) (*Pod, error) {
	at, err := pod.Open()
	if err != nil {
		return nil, err
	}
	conn, err := rtnl.OpenFor(ctx, at)
	if err != nil {
		at.Close()
		return nil, err
	}
	if deletions != nil {
		conn.DeleteBy(deletions)
	}
	return &Pod{at, conn}, nil
}

// Leave closes what Enter has opened.
func (p *Pod) Leave() {
	p.Conn.Close()
	p.At.Close()
}
