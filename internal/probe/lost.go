package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/echo"
	"github.com/berth-net/berth/internal/kernel/nft"
)

// station is a place on the node's way of a packet and its answer.
type station struct {
	hook        string
	last, reply bool
}

func (f flight) stations() (all []station) {
	for _, leg := range []struct {
		hooks []string
		reply bool
	}{{f.there, false}, {f.back, true}} {
		for _, h := range leg.hooks {
			all = append(all, station{h, false, leg.reply}, station{h, true, leg.reply})
		}
	}
	return all
}

// reached returns how many of the stations a packet and its answer have come to: all up to the last
// at which the node saw them.
func reached(stations []station, seen []nft.Sight) int {
	for i, s := range slices.Backward(stations) {
		if slices.ContainsFunc(seen, func(at nft.Sight) bool { return at.Drop == nil && station{at.Hook, at.Last, at.Reply} == s }) {
			return i + 1
		}
	}
	return 0
}

// what names the packet, or its answer.
func what(reply bool) string {
	if reply {
		return "the answer"
	}
	return "the packet"
}

// lost finds out where a packet or its answer got lost.
func (p *prober) lost(ctx context.Context, f flight, o outcome) (Verdict, []string) {
	for _, s := range o.seen {
		if s.Drop != nil {
			return Fail, []string{fmt.Sprintf("%s was dropped by %s", what(s.Reply), s.Drop.Say(p.chains()))}
		}
	}
	if f.inPod && len(o.seen) == 0 {
		if v, why := p.lostInPod(ctx, f, o); v != "" {
			return v, why
		}
	}
	if p.trail == nil {
		return p.guess(ctx, f, o)
	}
	stations := f.stations()
	n := reached(stations, o.seen)
	incomplete := ""
	if !o.whole {
		incomplete = " (the kernel could not tell of all packets)"
	}
	switch {
	case n == len(stations):
		return p.untaken(ctx, f, incomplete)
	case n == 0:
		return Fail, append([]string{"the packet did not come to the node's rules" + incomplete}, p.routing(f, o, false)...)
	}
	at, next := stations[n-1], stations[n]
	switch {
	case next.last:
		return Fail, []string{fmt.Sprintf("%s got lost in %s, and no nftables rule dropped it%s: legacy iptables may have, which berth doctor looks at, or a BPF program",
			what(at.reply), at.hook, incomplete)}
	case at.reply == next.reply:
		why := []string{fmt.Sprintf("%s got lost between %s and %s%s: the node does not route it", what(at.reply), at.hook, next.hook, incomplete)}
		return Fail, append(why, p.routing(f, o, at.reply)...)
	}
	return p.unanswered(ctx, f)
}

// guess judges a packet if nothing tells where the packet got lost, as on Linux before 5.12.
func (p *prober) guess(ctx context.Context, f flight, o outcome) (Verdict, []string) {
	wrong := slices.Concat(p.routing(f, o, false), p.routing(f, o, true), p.beyond(ctx, f))
	if len(wrong) > 0 {
		return Fail, wrong
	}
	return Unknown, []string{
		"nothing tells where the packet got lost (" + p.blind.Error() + "), and no setting is wrong",
		"berth doctor names the chains that drop what pods send",
	}
}

// lostInPod judges a packet that was sent inside the pod, and that the node has not seen.
func (p *prober) lostInPod(ctx context.Context, f flight, o outcome) (Verdict, []string) {
	wrong := p.inside(ctx, p.pod, p.Pod, f.to)
	var refused *echo.Refused
	switch {
	case len(wrong) > 0:
		return Fail, wrong
	case errors.Is(o.err, unix.EPERM):
		return Unknown, []string{"a rule of the pod's own forbids it, or the user who runs this lacks a right"}
	case errors.As(o.err, &refused):
		return "", nil
	case len(f.there) == 0:
		return Unknown, []string{"the pod does not answer itself: a rule of its own may drop echos"}
	case p.trail != nil && o.whole:
		return Fail, []string{"the packet left the pod's socket and did not come to the node: a rule of the pod's own, or a tc filter on " + p.Pod.Ifname + " or " + p.Pod.Host}
	}
	return "", nil
}

// untaken judges an answer that has passed all of the node's rules, and that did not come in.
func (p *prober) untaken(ctx context.Context, f flight, incomplete string) (Verdict, []string) {
	why := "the answer has passed all of the node's rules" + incomplete
	if !f.inPod {
		return Fail, []string{why + ", and did not come to the socket"}
	}
	if wrong := p.inside(ctx, p.pod, p.Pod, f.to); len(wrong) > 0 {
		return Fail, append([]string{why}, wrong...)
	}
	return Unknown, []string{why + ", and the pod does not take it in: a rule or an rp_filter of its own may drop it"}
}

// unanswered judges a packet that has left the node, and whose answer has not come.
func (p *prober) unanswered(ctx context.Context, f flight) (Verdict, []string) {
	if wrong := p.beyond(ctx, f); len(wrong) > 0 {
		return Fail, wrong
	}
	switch {
	case f.toPod != nil && !f.inPod:
		return Unknown, []string{"the packet went to the pod by " + p.Pod.Host + ", and the pod does not answer: a rule of its own may drop echos"}
	case slices.Contains(f.back, "output"):
		return Fail, []string{"the node got the packet, and did not answer: " + strings.Join(p.mute(f.to.Is6()), ", ")}
	}
	whose := f.to.String()
	if f.toPod != nil {
		whose = "pod " + f.toPod.Name
	}
	if f.tcp != nil {
		return Fail, []string{"the packet has left the node, and nobody has answered: a firewall beyond the node, or at the other end, may drop it"}
	}
	// Does the peer answer the node itself?
	if o := p.fly(flight{to: f.to}); o.err != nil {
		return Unknown, []string{fmt.Sprintf("the packet has left the node, and %s does not answer the node, either", whose)}
	}
	return Fail, []string{fmt.Sprintf("the packet has left the node, and %s answers the node, but not the pod: is masquerade off for this address, and is there a way back to %s?", whose, f.from)}
}

// chains lists the base chains of the node; none if they cannot be listed.
func (p *prober) chains() []nft.BaseChain {
	all, err := nft.BaseChains()
	if err != nil {
		return nil
	}
	return all
}
