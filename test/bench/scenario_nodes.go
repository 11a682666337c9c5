package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// ownNode is the number of the node whose agent is measured: its address is that of the segment's link.
const ownNode = 1

// nodes measures an agent in a cluster of a thousand nodes on one segment, whose API server is simulated: how long it takes
// until there are routes to all of them, to one that comes, and none to one that goes. A loop that adds and deletes the same
// routes by netlink and does nothing else takes turns with it.
func nodes(ctx context.Context, b *bench) error {
	seg, err := segment()
	if err != nil {
		return err
	}
	defer func() { _ = netlink.LinkDel(seg) }() // the namespace ends with the run, too
	n := b.pick(1000, 200)
	all := make([]corev1.Node, n)
	for i := range all {
		all[i] = clusterNode(ownNode + i)
	}
	server := newClusterAPI()
	defer server.close()
	server.Put("nodes", all[0])
	a, err := startClusterAgent(ctx, b, server, "cluster", "routing: native")
	if err != nil {
		return err
	}
	defer a.Stop()
	w, err := watchRoutes()
	if err != nil {
		return err
	}
	defer w.close()
	t := b.report.section(fmt.Sprintf("A cluster of %d nodes on one segment: routes to other nodes", n),
		"", "berthd ms", "netlink alone ms", "x", "agent's CPU ms a node")

	// All at once, as if they had come while the agent's watch was cut.
	var many, bare time.Duration
	_, cpu, err := a.spends(func() (f apiFigures, err error) {
		many, err = w.until(ctx, n-1, func() error {
			for _, node := range all[1:] {
				server.Put("nodes", node)
			}
			return nil
		})
		return f, err
	})
	if err != nil {
		return err
	}
	spare := func(i int) int { return ownNode + n + i }
	if bare, err = w.until(ctx, n-1, func() error { return routesTo(seg, spare(0), n-1, netlink.RouteAdd) }); err != nil {
		return err
	}
	if err := w.ended(ctx, n-1, func() error { return routesTo(seg, spare(0), n-1, netlink.RouteDel) }); err != nil {
		return err
	}
	t.row(fmt.Sprintf("%d nodes come at once", n-1), num(many), num(bare), fmt.Sprintf("%.1f", float64(many)/float64(bare)), num(cpu/time.Duration(n-1)))

	var came, went, added, deleted []time.Duration
	_, cpu, err = a.spends(func() (f apiFigures, err error) {
		for i := range b.pick(200, 40) {
			node := clusterNode(spare(i))
			up, err := w.until(ctx, 1, func() error { server.Put("nodes", node); return nil })
			if err != nil {
				return f, err
			}
			down, err := w.until(ctx, -1, func() error { server.Delete("nodes", "/"+node.Name); return nil })
			if err != nil {
				return f, err
			}
			came, went = append(came, up), append(went, down)
		}
		return f, nil
	})
	if err != nil {
		return err
	}
	each := cpu / time.Duration(2*len(came))
	for i := range len(came) {
		up, err := w.until(ctx, 1, func() error { return routesTo(seg, spare(i), 1, netlink.RouteAdd) })
		if err != nil {
			return err
		}
		down, err := w.until(ctx, -1, func() error { return routesTo(seg, spare(i), 1, netlink.RouteDel) })
		if err != nil {
			return err
		}
		added, deleted = append(added, up), append(deleted, down)
	}
	for _, row := range []struct {
		what       string
		berth, raw []time.Duration
	}{{"a node comes", came, added}, {"a node goes", went, deleted}} {
		for _, p := range []float64{50, 99} {
			mine, theirs := percentile(row.berth, p), percentile(row.raw, p)
			t.row(fmt.Sprintf("%s, p%.0f", row.what, p), num(mine), num(theirs), fmt.Sprintf("%.1f", float64(mine)/float64(theirs)), num(each))
		}
	}
	return nil
}

// segment makes the link to the segment on which the cluster's nodes are.
func segment() (netlink.Link, error) {
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "seg0"}, PeerName: "seg1"}
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("ip link add seg0 type veth: %w", err)
	}
	link, err := netlink.LinkByName("seg0")
	if err != nil {
		return nil, err
	}
	far, err := netlink.LinkByName("seg1")
	if err != nil {
		return nil, err
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 64, 0, ownNode), Mask: net.CIDRMask(12, 32)}}
	return link, errors.Join(netlink.AddrAdd(link, addr), netlink.LinkSetUp(link), netlink.LinkSetUp(far))
}

// startClusterAgent starts the agent of the cluster's node ownNode, whose files lie in a folder of the run's. keys are those of inCluster.
func startClusterAgent(ctx context.Context, b *bench, server *clusterAPI, folder, keys string) (*agent, error) {
	root := filepath.Join(b.dir, folder)
	url, err := server.listen(nil)
	if err == nil {
		err = inCluster(root, clusterNode(ownNode).Name, url, keys)
	}
	if err != nil {
		return nil, err
	}
	return startAgent(ctx, b.opts.bin, root, nil)
}

// routesTo adds or deletes the routes to the pods of n nodes, from a number on.
//
//	ip route add CIDR via NODE dev seg0
func routesTo(link netlink.Link, from, n int, change func(*netlink.Route) error) error {
	for i := range n {
		_, dst, err := net.ParseCIDR(clusterCIDR(from + i))
		if err != nil {
			return err
		}
		gw := net.ParseIP(clusterNode(from + i).Status.Addresses[0].Address)
		if err := change(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Gw: gw}); err != nil {
			return fmt.Errorf("route to %s: %w", dst, err)
		}
	}
	return nil
}

// routeWatch counts routes to clusterCIDRs as they come and go.
type routeWatch struct {
	updates chan netlink.RouteUpdate
	done    chan struct{}
	there   map[string]bool // the CIDRs that routes lead to
}

func watchRoutes() (*routeWatch, error) {
	w := &routeWatch{updates: make(chan netlink.RouteUpdate, 4096), done: make(chan struct{}), there: map[string]bool{}}
	err := netlink.RouteSubscribeWithOptions(w.updates, w.done, netlink.RouteSubscribeOptions{ReceiveBufferSize: 8 << 20})
	return w, err
}

func (w *routeWatch) close() { close(w.done) }

// until calls cause and returns how long it takes from then until n more routes to nodes are there, or -n fewer.
func (w *routeWatch) until(ctx context.Context, n int, cause func() error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	begun := time.Now()
	failed := make(chan error, 1)
	go func() { failed <- cause() }()
	for want := len(w.there) + n; len(w.there) != want; {
		select {
		case u, ok := <-w.updates:
			if !ok {
				return 0, errors.New("the kernel tells no more about routes")
			}
			if ip := routeIP(u); ip == nil || ip[0] != 10 || ip[1] < 128 {
				continue
			}
			if u.Type == unix.RTM_NEWROUTE {
				w.there[u.Dst.String()] = true
			} else {
				delete(w.there, u.Dst.String())
			}
		case err := <-failed:
			if err != nil {
				return 0, err
			}
			failed = nil
		case <-ctx.Done():
			return 0, fmt.Errorf("waiting until routes lead to %d nodes, and not to %d: %w", want, len(w.there), ctx.Err())
		}
	}
	return time.Since(begun), nil
}

func routeIP(u netlink.RouteUpdate) net.IP {
	if u.Dst == nil || u.Gw == nil { // such as the route of the node's own pool
		return nil
	}
	return u.Dst.IP.To4()
}

// ended is until for n fewer routes, of which nobody wants to know how long they take.
func (w *routeWatch) ended(ctx context.Context, n int, cause func() error) error {
	_, err := w.until(ctx, -n, cause)
	return err
}
