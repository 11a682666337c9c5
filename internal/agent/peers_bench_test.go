package agent

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/peers"
)

// nthNode returns one of thousands of other nodes. at numbers its addresses.
func nthNode(i, at int) peers.Node {
	return peers.Node{
		Name: fmt.Sprint("node-", i),
		CIDRs: []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24), netip.MustParsePrefix(fmt.Sprintf("fd00:244:%x::/64", i)),
		},
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, byte(at >> 8), byte(at)}), netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", at))},
	}
}

// BenchmarkOtherNode measures what it costs an agent in a cluster of many nodes that one of these gets other addresses, or another
// CIDR: the ledger's commits, the routes, and the addresses in the nftables table. What counts is that it costs the same in
// clusters of all sizes.
func BenchmarkOtherNode(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprintf("%d nodes", n), func(b *testing.B) {
			nettest.Need(b)
			nettest.Program(b, "ip")
			for _, c := range []string{
				"ip link add seg0 type veth peer name seg1", "ip link set seg1 up", "ip link set seg0 up",
				"ip addr add 172.16.0.1/12 dev seg0", "ip addr add 2001:db8::1/64 dev seg0 nodad",
			} {
				nettest.Run(b, nil, c)
			}
			defer nettest.Run(b, nil, "ip link del seg0")
			r := newRig(b, "default=192.168.7.0/24")
			r.bringUp()
			defer func() { must(b, r.remove(context.Background())); r.close() }()
			settled := make(chan struct{}, 1)
			reach := r.cluster.Peers.Changed
			r.cluster.Peers.Changed = func(ctx context.Context) { reach(ctx); settled <- struct{}{} }
			ctx, stop := context.WithCancel(b.Context())
			var kept sync.WaitGroup
			kept.Go(func() { r.cluster.Peers.Keep(ctx) })
			kept.Go(func() { r.ground.KeepTable(ctx) })
			defer func() { stop(); kept.Wait() }()
			nettest.Eventually(b, "the table to be watched", r.node.Table.(interface{ Intact() bool }).Intact)
			all := make([]peers.Node, n)
			for i := range all {
				all[i] = nthNode(i, 2+i)
			}
			r.cluster.Peers.All(all)
			<-settled
			if failed := r.cluster.Peers.Failed(); len(failed) > 0 {
				b.Fatal(failed)
			}
			for what, put := range map[string]func(turn int) peers.Node{
				"other addresses": func(turn int) peers.Node { return nthNode(n/2, 2+n+turn%2) },
				"other CIDRs":     func(turn int) peers.Node { return nthNode(n/2+(turn%2)*n, 2+n/2) },
			} {
				b.Run(what, func(b *testing.B) {
					turn := 0
					var spent time.Duration
					for b.Loop() {
						turn++
						node := put(turn)
						node.Name = all[n/2].Name
						before := cpu(b)
						r.cluster.Peers.Put(node)
						<-settled
						spent += cpu(b) - before
					}
					b.ReportMetric(float64(spent.Microseconds())/float64(b.N), "cpu-µs/op")
				})
			}
		})
	}
}
