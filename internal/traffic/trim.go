package traffic

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/conntrack"
	"github.com/berth-net/berth/internal/kinds/flows"
)

// The nftables table limits the connections that a pod opens (kernel/nft/limit.go). It does
// not see closed TCP connections, which a pod can keep in connection tracking with a packet
// every two minutes, or turn into open ones again. It does not count connections that others open
// to the pod either, and the pod can keep such connections in the table by an answer. So the agent
// looks how full connection tracking is. It deletes entries of a pod that has too many before there
// is no room for other pods, or no free port of the node's address for one destination.

const (
	// trimEvery is the time between two looks how full connection tracking is. A look reads
	// two files.
	trimEvery = 2 * time.Second
	// trimRest is how long the agent rests after going over the table, in multiples of the
	// time that this took. A full table of 262,144 entries, of which no pod has especially
	// many, takes 0.4 s.
	trimRest = 20
	// trimAgain is trimRest if pods had too many. Nothing limits how fast others open connections
	// to a pod: a pod that works with others would fill the table again meanwhile.
	trimAgain = 2
	// portsRest is trimRest where the table has room, but there may be no free port. A pod
	// that has half of the ports takes the others in one second if it has opened nothing for
	// half a minute, and in half a minute otherwise (nft's dropHasty).
	portsRest = 50
	// trimming limits how long going over the table may take.
	trimming = 30 * time.Second
)

// KeepTrimmed deletes entries of pods that have too many, whenever connection tracking is
// three quarters full, or has three quarters as many entries as there are ports, until
// ctx ends.
func (t *Traffic) KeepTrimmed(ctx context.Context) {
	var trimmed, failed bool // whether the last Trim deleted entries, and whether it failed
	var room bool            // whether the table had room then: Trim was for free ports alone
	for pause := trimEvery; ; {
		for ready := time.Now().Add(pause); time.Now().Before(ready) && !(room && t.full()); {
			if daemon.Sleep(ctx, min(trimEvery, time.Until(ready)), nil); ctx.Err() != nil {
				return
			}
		}
		begun := time.Now()
		room = !t.full()
		gone, rest, err := t.Trim(ctx)
		pause = max(trimEvery, rest*time.Since(begun))
		if err != nil && !failed && ctx.Err() == nil {
			t.Log.Warn("could not keep pods from filling the connection tracking table", "err", err)
		}
		if len(gone) > 0 && !trimmed {
			t.Log.Warn("the connection tracking table, or the ports for masquerade, had almost run out: the agent deleted entries of pods that had too many",
				"pods", len(gone), "such as", gone[:min(len(gone), 5)])
		}
		trimmed, failed = len(gone) > 0, err != nil
	}
}

// full reports whether connection tracking is three quarters full.
func (t *Traffic) full() bool {
	entries, most, err := t.node.Tracked.Load()
	return err == nil && isFull(entries, most)
}

func isFull(entries, most int) bool { return most > 0 && entries >= most-most/4 }

// trimBounds returns how many entries a pod may have. connections is how many connections a
// pod may open, entries is how many entries connection tracking has, and most how many it can
// have. ports is how many ports masquerade can give to one destination with one address of the
// node: while there are fewer entries than that, a port is free. rest is how long to rest after
// a Trim, in multiples of the time that it took; 0: no Trim is needed now.
func trimBounds(connections, entries, most, ports int) (b conntrack.Bounds, rest time.Duration) {
	if connections == 0 || most == 0 {
		return b, 0
	}
	if isFull(entries, most) {
		b, rest = conntrack.Bounds{
			Closed: min(2*connections, most/2), // half, so that one pod's closed connections cannot fill a small table
			All:    2 * connections,
			Others: true, // no matter who has filled it
		}, trimRest
	}
	if half := max(connections, ports/2); entries >= ports-ports/4 && half < ports {
		if rest == 0 {
			return conntrack.Bounds{Closed: half, All: half + half/2}, portsRest
		}
		b.Closed, b.Begun = min(b.Closed, half), half+half/2 // connections that others have begun take no port
	}
	return b, rest
}

// Trim goes over connection tracking once, if trimBounds says that it is time to. It returns
// the pods whose entries it deleted, with how many, and how long to rest, as trimBounds does.
func (t *Traffic) Trim(ctx context.Context) (gone []string, rest time.Duration, err error) {
	c := t.ground.Config()
	if c.Connections == 0 {
		return nil, 0, nil
	}
	entries, most, err := t.node.Tracked.Load()
	if err != nil {
		return nil, 0, err
	}
	bounds, rest := trimBounds(c.Connections, entries, most, c.Masquerade.Ports.Len())
	if rest == 0 {
		return nil, 0, nil
	}
	all := t.index.All()
	whose := map[netip.Addr]int{}
	for i, e := range all {
		for _, n := range e.Owner.Names {
			if addr, err := ipam.ParseName(n); err == nil {
				whose[addr] = i
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, trimming)
	defer cancel()
	begun, total := time.Now(), 0
	fewer, err := t.node.Tracked.Trim(ctx, whose, bounds)
	for i, n := range fewer {
		gone, total = append(gone, fmt.Sprintf("%s: %d", all[i].Record.Key, n)), total+n
	}
	slices.Sort(gone)
	if bounds.Others && len(gone) > 0 {
		rest = trimAgain
	}
	if t.Observe != nil {
		t.Observe(flows.KindName, "trim", time.Since(begun), total, err)
	}
	return gone, rest, err
}
