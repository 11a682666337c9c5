package traffic

import (
	"context"
	"net/netip"
	"time"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/kernel/conntrack"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/patience"
)

// If a pass over connection tracking fails, KeepMapped and KeepHidden try it again, after waits of
// againFirst up to againMost, or as soon as there is more to do: nobody else deletes the entries that
// the pass had to delete, and an entry stays for as long as somebody uses it.
const (
	againFirst = time.Second
	againMost  = time.Minute
)

// await waits until there is something new to do, or, if the last passes have failed, until it is
// time to try again. It reports whether ctx goes on.
func await(ctx context.Context, news <-chan struct{}, failed int) bool {
	var again <-chan time.Time
	if failed > 0 {
		timer := time.NewTimer(patience.Backoff(againFirst, againMost, failed))
		defer timer.Stop()
		again = timer.C
	}
	select {
	case <-ctx.Done():
	case <-news:
	case <-again:
	}
	return ctx.Err() == nil
}

// Exposed says that the nftables table may have been missing or out of force, or a pod's link not
// among the links that the table's rules are for, and that all is well again. The callers of Exposed
// are the parts of the agent that see this: the keeper of the table (ground), the repair of a link
// (link.Options), and the watcher of links (mend).
func (t *Traffic) Exposed() {
	t.Missed()
	t.Unwatched()
	t.MappedAnew() // somebody else's table may have led the ports elsewhere
}

// Unwatched says that nobody has kept the table for a while, as since the last agent. If the table
// was then as that agent left it (nobody has called Missed), connections between pods stay: they
// began under the rules, and each counts for the pod that began it. If they were forgotten, each
// would count for the pod that sends next.
func (t *Traffic) Unwatched() {
	t.missed.over()
	select {
	case t.uncovered <- struct{}{}:
	default:
	}
}

// mappedEvery is the least time between two passes for host ports that were mapped. A pass lists
// all of connection tracking, and many pods may come at once.
const mappedEvery = 250 * time.Millisecond

// Mapped says that host ports were mapped. Flows may have had these ports before: flows of clients
// that have sent datagrams to the node itself, and flows to which masquerade has given such a port.
func (t *Traffic) Mapped(ms []nft.Mapping) {
	t.mappings.Lock()
	t.mappings.new = append(t.mappings.new, ms...)
	t.mappings.Unlock()
	select {
	case t.mapped <- struct{}{}:
	default:
	}
}

// MappedAnew has the kernel forget flows that have pods' host ports of UDP or SCTP from before these were mapped. A pass
// knows such flows by the node's addresses, and may have come while one of these was away; or the last agent may have
// ended before its pass.
func (t *Traffic) MappedAnew() {
	t.mappings.Lock()
	t.mappings.anew = true
	t.mappings.Unlock()
	select {
	case t.mapped <- struct{}{}:
	default:
	}
}

// Astray says that host ports have led to addresses by mistake: somebody has brought back an older table, or an agent was lost,
// and its table led to pods that have come since.
func (t *Traffic) Astray(ms []nft.Mapping) {
	t.mappings.Lock()
	for _, m := range ms {
		m.Via = 0 // connections do not tell it
		t.mappings.astray = append(t.mappings.astray, m)
	}
	t.mappings.Unlock()
	select {
	case t.mapped <- struct{}{}:
	default:
	}
}

// KeepMapped has the kernel forget the flows that had host ports before Mapped named these ports, and
// no other flows, until ctx ends. The kernel forgets the first pod's flows at once. The next pass
// repeats the search of a failed pass.
func (t *Traffic) KeepMapped(ctx context.Context) {
	due, astray := hostPorts{}, mappings{}
	failed := 0 // passes in a row
	for await(ctx, t.mapped, failed) {
		t.mappings.Lock()
		mapped, anew := t.mappings.new, t.mappings.anew
		for _, m := range t.mappings.astray {
			astray[m] = true
		}
		t.mappings.new, t.mappings.astray, t.mappings.anew = nil, nil, false
		t.mappings.Unlock()
		if due.add(mapped); anew {
			due.add(t.Ports.Datagrams())
		}
		if len(due) == 0 && len(astray) == 0 {
			continue
		}
		led := func(protocol string, at, to netip.AddrPort) bool {
			return astray.led(protocol, at, to) && !t.Ports.Leads(protocol, at, to)
		}
		if err := t.node.Tracked.ForgetMapped(due.pod, led); err == nil {
			clear(due)
			clear(astray)
			failed = 0
		} else if failed++; failed == 1 {
			t.Log.Warn("could not delete the connections that had host ports before these were mapped: the agent tries again", "err", err)
		}
		daemon.Sleep(ctx, mappedEvery, nil)
	}
}

// hostPorts are ports of the node, with the pod's ports to which they lead by now. A port is there once,
// however many pods with this port come and go.
type hostPorts map[hostPort]netip.AddrPort

type hostPort struct {
	protocol string
	at       netip.AddrPort
}

func (p hostPorts) add(ms []nft.Mapping) {
	for _, m := range ms {
		p[hostPort{m.Protocol, m.Host}] = m.Pod
	}
}

// mappings are ports of the node, each with the port of an address to which it leads.
type mappings map[nft.Mapping]bool

// led reports whether one of the ports led to `to`.
func (ms mappings) led(protocol string, at, to netip.AddrPort) bool {
	if len(ms) == 0 {
		return false
	}
	any := netip.AddrPortFrom(unspecified(at.Addr()), at.Port())
	return ms[nft.Mapping{Protocol: protocol, Host: at, Pod: to}] || ms[nft.Mapping{Protocol: protocol, Host: any, Pod: to}]
}

// unspecified returns the address that stands for all addresses of an address's family.
func unspecified(a netip.Addr) netip.Addr {
	if a.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// pod returns the pod's port to which a port of the node leads, at the address in `at` or at all addresses.
func (p hostPorts) pod(protocol string, at netip.AddrPort) (netip.AddrPort, bool) {
	to, ok := p[hostPort{protocol, at}]
	if !ok {
		to, ok = p[hostPort{protocol, netip.AddrPortFrom(unspecified(at.Addr()), at.Port())}]
	}
	return to, ok
}

// KeepHidden makes the kernel forget, whenever the rules may not have held, the connections
// that began meanwhile and that the rules would not have let begin in this way, such as those
// that leave with a pod's own address, or go to a blocked one (conntrack.ForgetExposed). It
// ends with ctx.
func (t *Traffic) KeepHidden(ctx context.Context) {
	failed, missed := 0, false // passes in a row; Missed was called before them
	for await(ctx, t.uncovered, failed) {
		r := t.ground.Ruleset()
		if missed = t.missed.take() || missed; missed {
			_ = t.Ports.ClearLeft() // somebody may have brought back a lost agent's table; the sweep tries again
		}
		rules := conntrack.Rules{
			Pools: r.Pools, Masquerade: r.Masquerade, Excluded: r.Excluded, Blocked: r.Blocked,
			HostPort: t.Ports.Has, Leads: t.Ports.Leads, Missed: missed,
		}
		if err := t.node.Tracked.ForgetExposed(rules); err == nil {
			if missed {
				t.unmark()
			}
			failed, missed = 0, false
		} else if failed++; failed == 1 {
			t.Log.Warn("could not delete the connections that began while the nftables rules did not hold: the agent tries again", "err", err)
		}
	}
}
