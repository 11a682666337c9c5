package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/root"
)

// How often a probe does each of its two operations.
const (
	lockEvery = time.Millisecond
	addEvery  = 20 * time.Millisecond
)

// stalls says how long a probe's operations took.
type stalls struct {
	lock []time.Duration // setting an idle link's group, which takes the kernel's rtnl lock
	at   []time.Duration // when each of these began, counted from the first
	add  []time.Duration // an ADD over the agent's API
}

// cells returns the figures as the cells of a row.
func (s stalls) cells() []string {
	var cells []string
	for _, ds := range [][]time.Duration{s.lock, s.add} {
		cells = append(cells, num(percentile(ds, 50)), num(percentile(ds, 99)), num(slices.Max(ds)))
	}
	return cells
}

// seconds returns, for each second, the longest time that a probe took to get the kernel's
// lock. A moment in which the machine did something else affects only one second's figure.
func (s stalls) seconds() series {
	var longest series
	for i, took := range s.lock {
		if i == 0 || s.at[i]/time.Second > s.at[i-1]/time.Second {
			longest = append(longest, took)
		}
		last := len(longest) - 1
		longest[last] = max(longest[last], took)
	}
	return longest
}

// probe does two operations again and again while other work goes on, and measures how long
// each takes.
type probe struct {
	agent *agent // through a connection of its own
	pods  []*pod
	cease context.CancelFunc
	seen  stalls
	used  int // pods attached
	ended chan error
}

// startProbe starts a probe that attaches as many of the given pods as it has time for.
func startProbe(ctx context.Context, a *agent, ps []*pod) (*probe, error) {
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "probe0"}}
	if err := netlink.LinkAdd(link); err != nil { // ip link add probe0 type bridge
		return nil, fmt.Errorf("making a link to probe with: %w", err)
	}
	own := *a.Agent
	own.API = client.New(root.Dir(a.Root).Socket())
	ctx, cease := context.WithCancel(ctx)
	p := &probe{agent: &agent{&own}, pods: ps, cease: cease, ended: make(chan error, 2)}
	go func() { p.ended <- p.changeLink(ctx, link) }()
	go func() { p.ended <- p.attach(ctx) }()
	return p, nil
}

// changeLink is `ip link set probe0 group N`, again and again. Its thread gets the highest
// priority, if that is allowed, so that it waits for the kernel's lock and not for a
// processor.
func (p *probe) changeLink(ctx context.Context, link netlink.Link) error {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and its priority with it
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20)
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer handle.Close()
	first := time.Now()
	for group := 1; ctx.Err() == nil; group = 3 - group {
		begun := time.Now()
		if err := handle.LinkSetGroup(link, group); err != nil {
			return fmt.Errorf("changing a link: %w", err)
		}
		p.seen.lock, p.seen.at = append(p.seen.lock, time.Since(begun)), append(p.seen.at, begun.Sub(first))
		time.Sleep(lockEvery)
	}
	return nil
}

// attach adds a pod every addEvery.
func (p *probe) attach(ctx context.Context) error {
	for _, pod := range p.pods {
		if ctx.Err() != nil {
			return nil
		}
		took, err := p.agent.post(context.WithoutCancel(ctx), pod)
		if err != nil {
			return err
		}
		p.used++
		p.seen.add = append(p.seen.add, took)
		time.Sleep(addEvery)
	}
	return nil
}

// stop ends the probe and removes what it made.
func (p *probe) stop(ctx context.Context) (stalls, error) {
	p.cease()
	err := <-p.ended
	if second := <-p.ended; err == nil {
		err = second
	}
	link, linkErr := netlink.LinkByName("probe0")
	if linkErr == nil {
		linkErr = netlink.LinkDel(link)
	}
	if err != nil {
		return stalls{}, err
	}
	if linkErr != nil {
		return stalls{}, fmt.Errorf("removing the link that was probed with: %w", linkErr)
	}
	if _, err := p.agent.detach(ctx, p.pods[:p.used]); err != nil {
		return stalls{}, err
	}
	p.agent.API.Close()
	return p.seen, settle(p.pods[:p.used])
}
