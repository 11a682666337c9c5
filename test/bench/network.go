package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/libcni"
)

// opTimeout is how long one ADD or DEL may take before the run fails.
const opTimeout = 2 * time.Minute

// network is a contestant that is ready to be driven by libcni, as runtimes do: libcni
// executes each plugin for a verb, and keeps the result in a cache.
type network struct {
	contestant
	list *libcni.NetworkConfigList
	cni  *libcni.CNIConfig
	idle func(context.Context) error   // waits until the work that DEL left for later is done
	busy func() (time.Duration, error) // the processor time of the plugin's agent until now; 0 without an agent
}

func newNetwork(c contestant, opts options, dir string, agent *agent) (*network, error) {
	state, bin := c.root(dir), opts.bin
	if c.before {
		bin = opts.before
	}
	conf := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "plugins": [%s]}`, networkName(c.name), c.config(state))
	list, err := libcni.NetworkConfFromBytes([]byte(conf))
	if err != nil {
		return nil, fmt.Errorf("configuring %s: %w", c.name, err)
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{bin, opts.peers}, filepath.Join(dir, "cache-"+c.name), nil)
	n := &network{contestant: c, list: list, cni: cni}
	n.idle = func(context.Context) error { return nil }
	n.busy = func() (time.Duration, error) { return 0, nil }
	if c.agent {
		n.idle = func(ctx context.Context) error { return agent.idle(ctx, list.Name) }
		n.busy = agent.CPU
	}
	return n, nil
}

// root returns the folder of a contestant's state. If the contestant has an agent, the folder is the
// agent's root.
func (c contestant) root(dir string) string {
	switch {
	case c.before:
		return filepath.Join(dir, "node-before")
	case c.agent:
		return filepath.Join(dir, "node")
	}
	return filepath.Join(dir, "state-"+c.name)
}

// networkName makes a contestant's name a valid network name.
func networkName(name string) string {
	clean := []byte(name)
	for i, c := range clean {
		if c == '+' {
			clean[i] = '-'
		}
	}
	return "bench-" + string(clean)
}

// containers numbers the containers of a run, so that no id is used twice.
var containers atomic.Int64

// attachment is a pod's attachment to a network.
type attachment struct {
	net *network
	rt  *libcni.RuntimeConf
	pod *pod
}

func (n *network) attachment(p *pod) *attachment {
	number := containers.Add(1)
	rt := &libcni.RuntimeConf{ContainerID: "bench" + strconv.FormatInt(number, 10), NetNS: p.ref.Path, IfName: ifname}
	if n.ports {
		rt.CapabilityArgs = map[string]any{"portMappings": portMappings(firstPort+int(number%20000)*2, 2)}
	}
	if n.rates {
		rt.CapabilityArgs = map[string]any{"bandwidth": rates}
	}
	return &attachment{n, rt, p}
}

// add is the runtime's ADD. It returns the whole time that the runtime waits.
func (a *attachment) add(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	begun := time.Now()
	_, err := a.net.cni.AddNetworkList(ctx, a.net.list, a.rt)
	took := time.Since(begun)
	if err != nil {
		return 0, fmt.Errorf("ADD of %s by %s: %w", a.rt.ContainerID, a.net.name, err)
	}
	return took, nil
}

// del is the runtime's DEL.
func (a *attachment) del(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	begun := time.Now()
	err := a.net.cni.DelNetworkList(ctx, a.net.list, a.rt)
	took := time.Since(begun)
	if err != nil {
		return 0, fmt.Errorf("DEL of %s by %s: %w", a.rt.ContainerID, a.net.name, err)
	}
	return took, nil
}

// sample says how long one wave took.
type sample struct {
	adds, dels       []time.Duration
	addWall, delWall time.Duration
	addCPU, delCPU   time.Duration // of the plugin's agent, in a DEL until the links are gone
	addExec, delExec time.Duration // the processor time of the plugins' processes
}

// wave attaches pods, width pods at once, and detaches them in the same way. Then wave
// waits, without measuring the wait, until all remaining work is done: what a plugin leaves for
// later must not slow down the next plugin.
func (n *network) wave(ctx context.Context, ps []*pod, width int) (sample, error) {
	all := make([]*attachment, len(ps))
	for i, p := range ps {
		all[i] = n.attachment(p)
	}
	var s sample
	var err error
	idle, err := n.busy()
	if err != nil {
		return s, err
	}
	before, err := childrenCPU()
	if err != nil {
		return s, err
	}
	if s.adds, s.addWall, err = together(width, all, func(a *attachment) (time.Duration, error) { return a.add(ctx) }); err != nil {
		return s, err
	}
	between, err := childrenCPU()
	if err != nil {
		return s, err
	}
	added, err := n.busy()
	if err != nil {
		return s, err
	}
	if s.dels, s.delWall, err = together(width, all, func(a *attachment) (time.Duration, error) { return a.del(ctx) }); err != nil {
		return s, err
	}
	after, err := childrenCPU()
	if err != nil {
		return s, err
	}
	s.addExec, s.delExec = between-before, after-between
	if err := settle(ps); err != nil { // not n.settle: its n.idle asks the agent again and again
		return s, err
	}
	gone, err := n.busy()
	s.addCPU, s.delCPU = added-idle, gone-added
	return s, errors.Join(err, n.idle(ctx))
}

// settle waits until pods have no interface and no work is left.
func (n *network) settle(ctx context.Context, ps []*pod) error {
	if err := n.idle(ctx); err != nil {
		return err
	}
	return settle(ps)
}

// together calls f for each element of all, for width elements at once, and returns how long each
// call took and how long all calls took. together stops at the first error.
func together[T any](width int, all []T, f func(T) (time.Duration, error)) ([]time.Duration, time.Duration, error) {
	took := make([]time.Duration, len(all))
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	begun := time.Now()
	for range min(width, len(all)) {
		wg.Go(func() {
			for failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(all) {
					return
				}
				d, err := f(all[i])
				if err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				took[i] = d
			}
		})
	}
	wg.Wait()
	wall := time.Since(begun)
	if err := failed.Load(); err != nil {
		return nil, 0, *err
	}
	return took, wall, nil
}
