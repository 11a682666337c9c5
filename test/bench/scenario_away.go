package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/root"
)

// away measures DEL while the agent does not run, and the agent's next start, which does
// the queued deletions.
func away(ctx context.Context, b *bench) error {
	if err := b.awayDel(ctx); err != nil {
		return err
	}
	return b.queued(ctx, 1000)
}

// awayDel measures DEL, including the cut and the fsync, in turns with the DEL of the
// plugin that does nothing.
func (b *bench) awayDel(ctx context.Context) error {
	n, floor := b.network(berthName), b.network(floorName)
	if n == nil || floor == nil {
		return nil
	}
	rounds, each := b.pick(15, 4), 15
	b.say("away: %d rounds of %d DELs", rounds, each)
	var berth, noop series
	var all, allNoop []time.Duration
	for range rounds {
		ps, err := b.pods.fresh(each)
		if err != nil {
			return err
		}
		dels, floors, err := b.awayRound(ctx, n, floor, ps)
		if err != nil {
			return err
		}
		berth, noop = append(berth, percentile(dels, 50)), append(noop, percentile(floors, 50))
		all, allNoop = append(all, dels...), append(allNoop, floors...)
	}
	ratio, text := berth.ratio(noop)
	t := b.report.section(fmt.Sprintf("DEL, one at a time, while the agent does not run: %d rounds of %d", rounds, each),
		"plugin", "p50 ms", "rounds' p50", "p99 ms", "p50 x floor")
	t.row(floor.name, num(median(noop)), noop.span(), num(percentile(allNoop, 99)), "")
	t.row(n.name, num(median(berth)), berth.span(), num(percentile(all, 99)), text)
	b.report.atMost("DEL p50 while the agent is away / floor", ratio, 1.6, "x")
	return nil
}

// awayRound attaches pods, kills the agent, detaches the pods, and starts the agent again,
// which does the rest.
func (b *bench) awayRound(ctx context.Context, n, floor *network, ps []*pod) (dels, floors []time.Duration, err error) {
	var ours, theirs []*attachment
	for _, p := range ps {
		a, f := n.attachment(p), floor.attachment(p)
		for _, each := range []*attachment{a, f} {
			if _, err := each.add(ctx); err != nil {
				return nil, nil, err
			}
		}
		ours, theirs = append(ours, a), append(theirs, f)
	}
	if err := b.agent.Kill(); err != nil {
		return nil, nil, err
	}
	for i := range ps {
		first, second := ours[i], theirs[i]
		if i%2 == 1 { // ours and theirs take turns in being first
			first, second = second, first
		}
		for _, each := range []*attachment{first, second} {
			took, err := each.del(ctx)
			if err != nil {
				return nil, nil, err
			}
			if each.net == n {
				dels = append(dels, took)
			} else {
				floors = append(floors, took)
			}
		}
	}
	if err := b.agent.Start(ctx); err != nil {
		return nil, nil, err
	}
	return dels, floors, n.settle(ctx, ps)
}

// queued measures a start of the agent with count deletions in its queue, from the agent's
// exec until the last of their links is gone.
func (b *bench) queued(ctx context.Context, count int) error {
	if b.agent == nil {
		return nil
	}
	ps, err := b.pods.first(count)
	if err != nil {
		return err
	}
	alone, err := b.pace(ps[:min(count, 8*messageLinks)], "on a node without pods' links")
	if err != nil {
		return err
	}
	var serving, gone, cpu series
	for round := range b.pick(5, 2) {
		b.say("away, round %d: a start with %d queued deletions", round+1, count)
		s, err := b.startQueued(ctx, ps)
		if err != nil {
			return err
		}
		serving, gone, cpu = append(serving, s.serving), append(gone, s.gone), append(cpu, s.cpu)
	}
	t := b.report.section("Start of the agent with queued deletions, timed from its exec",
		"queued", "starts", "requests are served, median s", "the last link is gone, median s", "least-greatest ms", "agent's CPU ms")
	t.row(fmt.Sprint(count), fmt.Sprint(len(gone)), fmt.Sprintf("%.3f", median(serving).Seconds()),
		fmt.Sprintf("%.3f", median(gone).Seconds()), gone.span(), num(median(cpu)))
	b.report.atMost(fmt.Sprintf("start with %d queued deletions, until the last link is gone", count), median(gone).Seconds(), 0.8, "s")
	b.report.atMost(fmt.Sprintf("start with %d queued deletions, until the last link is gone / by the kernel alone", count),
		median(gone).Seconds()*alone.deletes()/float64(count), 1.5, "x")
	return nil
}

// queuedStart says how long one start of the agent with queued deletions took.
type queuedStart struct {
	serving, gone time.Duration // since the exec
	cpu           time.Duration // the agent's processor time until the last link was gone
}

func (b *bench) startQueued(ctx context.Context, ps []*pod) (s queuedStart, err error) {
	if _, err := b.agent.attach(ctx, ps); err != nil {
		return s, err
	}
	attached, err := b.agent.API.List(ctx, api.Filter{Network: apiNetwork})
	if err != nil {
		return s, err
	}
	if err := b.agent.Kill(); err != nil {
		return s, err
	}
	links := make(map[string]bool)
	for _, a := range attached {
		links[a.HostVeth] = true
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return s, err
	}
	enqueue := func(a api.Attachment) (time.Duration, error) { return 0, b.enqueue(a, strings.TrimSpace(string(boot))) }
	_, _, err = together(4, attached, enqueue)
	if err != nil {
		return s, err
	}
	last, stop, err := lastGone(links)
	if err != nil {
		return s, err
	}
	defer stop()
	begun := time.Now()
	if err := b.agent.Start(ctx); err != nil {
		return s, err
	}
	s.serving = time.Since(begun)
	select {
	case at := <-last:
		s.gone = at.Sub(begun)
	case <-time.After(opTimeout):
		return s, errors.New("links are left long after the agent has started")
	}
	if s.cpu, err = b.agent.CPU(); err != nil {
		return s, err
	}
	if err := b.agent.idle(ctx, apiNetwork); err != nil {
		return s, err
	}
	return s, settle(ps)
}

// enqueue does what the plugin does for a DEL while the agent is away.
func (b *bench) enqueue(a api.Attachment, boot string) error {
	link, err := netlink.LinkByName(a.HostVeth)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetDown(link); err != nil { // ip link set NAME down
		return fmt.Errorf("setting %s down: %w", a.HostVeth, err)
	}
	return deletions.Write(root.Dir(b.agent.Root), deletions.Record{
		Network: a.Network, Container: a.ContainerID, Ifname: a.Ifname,
		Link: a.HostVeth, Addresses: a.Addresses, Netns: a.Netns,
		Boot: boot, Started: boottime.Now(), Cut: true, Reason: "the agent was killed",
	})
}

// lastGone watches this namespace, and sends the time when the last of some links has been
// deleted.
func lastGone(links map[string]bool) (last <-chan time.Time, stop func(), err error) {
	updates, done := make(chan netlink.LinkUpdate, 16*len(links)), make(chan struct{})
	if err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{ // ip monitor link
		ReceiveBufferSize: 32 << 20, ReceiveBufferForceSize: true,
	}); err != nil {
		return nil, nil, fmt.Errorf("watching links: %w", err)
	}
	at := make(chan time.Time, 1)
	left := len(links)
	go func() {
		for u := range updates {
			if u.Header.Type != unix.RTM_DELLINK || !links[u.Link.Attrs().Name] {
				continue
			}
			if left--; left == 0 {
				at <- time.Now()
			}
		}
	}()
	return at, func() { close(done) }, nil
}
