// Package probe sends packets along a pod's real paths: from the node to the pod, and from inside
// the pod to itself, to the node, to another pod and out. Each step says what came back or, by what
// the kernel told of the packet on its way (nft.Trail), where it got lost and why. It needs root,
// in the agent's network namespace, and no agent. Nothing stays behind, in the pod or on the node.
//
// probe.go lists the steps, flight.go sends packets, own.go tells these packets from others' packets,
// lost.go finds out where they got lost, and facts.go finds out what is wrong there.
package probe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// Verdict is what a step found.
type Verdict string

const (
	OK      Verdict = "ok"
	Fail    Verdict = "fail"    // the packet, or its answer, got lost on a path that Berth's pods need
	Unknown Verdict = "unknown" // nobody answered, and that may be the other end's own choice
	Skipped Verdict = "skipped" // there is nobody to send to
)

// Step is one packet that was sent, and what became of it.
type Step struct {
	Name    string   `json:"step"`
	Verdict Verdict  `json:"verdict"`
	Sent    string   `json:"sent,omitempty"`
	Got     string   `json:"got"`
	Seconds float64  `json:"seconds"`
	Why     []string `json:"why,omitempty"` // where the packet got lost, and what is wrong there
}

// Pod is an attached pod.
type Pod struct {
	Name      string // as people call it
	Netns     string // path of its network namespace
	Ifname    string // its interface
	MAC       string // of the interface
	Host      string // the node's end of its link
	Addresses []netip.Addr
}

// address returns the pod's first address of a family.
func (p Pod) address(ipv6 bool) (netip.Addr, bool) {
	for _, a := range p.Addresses {
		if a.Is6() == ipv6 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// Options say what to probe.
type Options struct {
	Pod  Pod
	Peer *Pod           // another pod of the node; nil: there is none
	To   netip.AddrPort // where the way out leads; zero: to the default gateway. With port 0, an echo is sent, else a TCP segment
	Wait time.Duration  // for each answer
}

// prober is one probe.
type prober struct {
	Options
	node  *rtnl.Conn
	self  *ns.Netns
	pod   *ns.Netns
	token [8]byte
	trail *nft.Trail
	blind error // why there is no trail
	tcp   *dial // of the way out
	steps []Step
}

// Run probes a pod. The error says why the probe could not run: the pod's network namespace cannot
// be opened, or is not the namespace that the pod was attached in.
func Run(ctx context.Context, o Options) ([]Step, error) {
	p := &prober{Options: o}
	defer p.close()
	if err := p.open(ctx); err != nil {
		return nil, err
	}
	for _, a := range p.Pod.Addresses {
		if ctx.Err() != nil {
			return p.steps, ctx.Err()
		}
		p.probe(ctx, a)
	}
	return p.steps, nil
}

func (p *prober) open(ctx context.Context) (err error) {
	if p.self, err = ns.Self(); err != nil {
		return err
	}
	if p.pod, err = ns.OpenSoon(p.Pod.Netns); err != nil {
		return err
	}
	if p.pod.Ref().Same(p.self.Ref()) {
		return fmt.Errorf("%s is the node's own network namespace", p.Pod.Netns)
	}
	if err := p.pod.Do(func() error { return nil }); err != nil { // only root can enter it
		return err
	}
	if p.node, err = rtnl.OpenFor(ctx, p.self); err != nil {
		return err
	}
	rand.Read(p.token[:])
	var segments []nft.Segments
	if from, ok := p.Pod.address(p.To.Addr().Is6()); ok && p.To.Port() != 0 {
		if p.tcp, err = p.dialFrom(p.pod, from, p.To); err != nil {
			return fmt.Errorf("opening a TCP socket in the pod: %w", err)
		}
		segments = append(segments, p.tcp.segments())
	}
	p.trail, p.blind = nft.Open(p.self).Follow(p.token, segments...)
	return nil
}

func (p *prober) close() {
	if p.trail != nil {
		p.trail.Close()
	}
	if p.tcp != nil {
		p.tcp.close()
	}
	if p.node != nil {
		_ = p.node.Close()
	}
	for _, n := range []*ns.Netns{p.pod, p.self} {
		if n != nil {
			_ = n.Close()
		}
	}
}

// The hooks of the node that packets pass.
var (
	sent      = []string{"output", "postrouting"}
	received  = []string{"prerouting", "input"}
	forwarded = []string{"prerouting", "forward", "postrouting"}
)

// probe takes all steps for one of the pod's addresses.
func (p *prober) probe(ctx context.Context, a netip.Addr) {
	toPod, toNode := "node to pod", "pod to node"
	var way rtnl.Way
	err := p.node.Do(rtnl.GetWay(a, netip.Addr{}, 0, &way))
	nobody := err == nil && !reachable(way.Source)
	why := "the node has no " + family(a) + " address that pods can reach"
	if nobody {
		p.skip(toPod, why)
	} else {
		p.step(ctx, flight{name: toPod, to: a, toPod: &p.Pod, there: sent, back: received})
	}
	p.step(ctx, flight{name: "pod to itself", inPod: true, from: a, to: a})
	if nobody {
		p.skip(toNode, why)
	} else if err == nil {
		p.step(ctx, flight{name: toNode, inPod: true, from: a, to: way.Source, there: received, back: sent})
	}
	if p.Peer != nil {
		if to, ok := p.Peer.address(a.Is6()); ok {
			p.step(ctx, flight{name: "pod to pod " + p.Peer.Name, inPod: true, from: a, to: to, toPod: p.Peer, there: forwarded, back: forwarded})
		}
	}
	p.out(ctx, a)
}

// out takes the step out of the node.
func (p *prober) out(ctx context.Context, a netip.Addr) {
	f := flight{name: "pod out", inPod: true, from: a, there: forwarded, back: forwarded}
	if to := p.To.Addr(); to.IsValid() {
		if to.Is6() != a.Is6() {
			return
		}
		f.to, f.tcp = to, p.tcp
		var way rtnl.Way
		if err := p.node.Do(rtnl.GetWay(to, netip.Addr{}, 0, &way)); err == nil && way.Local {
			f.there, f.back = received, sent
		}
		p.step(ctx, f)
		return
	}
	g, found, err := p.node.Gateway(a.Is6())
	why := ""
	switch {
	case err != nil:
		why = err.Error()
	case !found:
		why = "the node has no default route of " + family(a)
	case !g.Addr.IsValid():
		why = "the node's default route of " + family(a) + " has no gateway"
	case g.Addr.IsLinkLocalUnicast():
		why = fmt.Sprintf("the default gateway %s answers on its own link alone", g.Addr)
	default:
		f.to = g.Addr
		p.step(ctx, f)
		return
	}
	p.skip(f.name, why+"; --to ADDRESS sends elsewhere")
}

// reachable reports whether a pod can send to an address of the node. A link-local address (RFC 4291,
// 2.5.6) belongs to a link that the pod may not be on. By a loopback address the pod reaches itself.
func reachable(a netip.Addr) bool {
	return a.IsValid() && !a.IsLoopback() && !a.IsLinkLocalUnicast()
}

func family(a netip.Addr) string {
	if a.Is6() {
		return "IPv6"
	}
	return "IPv4"
}

// skip says why a step is not taken.
func (p *prober) skip(name, why string) {
	p.steps = append(p.steps, Step{Name: name, Verdict: Skipped, Got: why})
}

// step takes one step.
func (p *prober) step(ctx context.Context, f flight) {
	o := p.fly(f)
	s := Step{Name: f.name, Verdict: OK, Sent: f.String(), Got: o.says(f), Seconds: o.took.Seconds()}
	if o.err != nil {
		s.Verdict, s.Why = p.lost(ctx, f, o)
	}
	p.steps = append(p.steps, s)
}

// errAddress says that a pod's interface lacks the pod's address.
var errAddress = errors.New("the pod does not have its address")
