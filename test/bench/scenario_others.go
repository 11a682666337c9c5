package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/root"
)

// othersName is the contestant whose pods have three networks of other plugins.
const othersName = "berth+plugins"

// others measures ADD and DEL of pods with three networks that other plugins make: the whole time, and the part of it that is not the plugins'
// own.
func others(ctx context.Context, b *bench) error {
	if b.agent == nil {
		return nil
	}
	master := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "others0"}}
	if err := netlink.LinkAdd(master); err != nil { // ip link add others0 type bridge
		return fmt.Errorf("making a link for macvlans: %w", err)
	}
	defer func() { _ = netlink.LinkDel(master) }() // it goes with the bench's network namespace, too
	plugins, err := startRunner(ctx, b.opts, b.agent.Root)
	if err != nil {
		return err
	}
	defer plugins.stop()
	n, err := newNetwork(contestant{name: othersName, agent: true, config: func(dir string) string {
		ipam := func(i int) string {
			return fmt.Sprintf(`{"type": "host-local", "dataDir": %q, "subnet": "10.20%d.0.0/16"}`, filepath.Join(b.dir, "others"), i)
		}
		return fmt.Sprintf(`{"type": "berth-cni", "root": %q, "binDir": %q, "delegates": [
			{"name": "o1", "cniVersion": "1.0.0", "type": "ptp", "ipam": %s},
			{"name": "o2", "cniVersion": "1.0.0", "type": "bridge", "bridge": "others1", "ipam": %s},
			{"name": "o3", "cniVersion": "1.0.0", "type": "macvlan", "master": "others0", "ipam": %s}]}`, dir, b.opts.peers, ipam(4), ipam(5), ipam(6))
	}}, b.opts, b.dir, b.agent)
	if err != nil {
		return err
	}
	took, err := b.oneByOne(ctx, n, b.pick(60, 10))
	if err != nil {
		return err
	}
	own, err := plugins.ran()
	if err != nil {
		return err
	}
	for _, verb := range []string{"ADD", "DEL"} {
		var whole, sums []time.Duration
		var ratios []float64
		for container, d := range took[verb] {
			sum := own[verb+" "+container]
			if sum == 0 {
				return fmt.Errorf("berth-runner has logged no %s of %s", verb, container)
			}
			whole, sums, ratios = append(whole, d), append(sums, sum), append(ratios, float64(d)/float64(sum))
		}
		t := b.report.section(fmt.Sprintf("%s with three networks of other plugins, one at a time: %d pods", verb, len(whole)), "plugin", "p50 ms", "the plugins' own p50 ms", "p50 x own")
		t.row(n.name, num(median(whole)), num(median(sums)), fmt.Sprintf("%.2fx", median(ratios)))
		b.report.atMost(fmt.Sprintf("three networks of other plugins: %s p50 / their own time", verb), median(ratios), 1.15, "x")
	}
	return nil
}

// oneByOne attaches and detaches pods one after the other, and returns how long each ADD and DEL took, by verb and container. The first two pods
// do not count.
func (b *bench) oneByOne(ctx context.Context, n *network, pods int) (map[string]map[string]time.Duration, error) {
	const unmeasured = 2
	took := map[string]map[string]time.Duration{"ADD": {}, "DEL": {}}
	ps, err := b.pods.fresh(unmeasured + pods)
	if err != nil {
		return nil, err
	}
	for i, p := range ps {
		a := n.attachment(p)
		add, err := a.add(ctx)
		if err != nil {
			return nil, err
		}
		del, err := a.del(ctx)
		if err != nil {
			return nil, err
		}
		if err := n.idle(ctx); err != nil {
			return nil, err
		}
		if i >= unmeasured {
			took["ADD"][a.rt.ContainerID], took["DEL"][a.rt.ContainerID] = add, del
		}
	}
	return took, nil
}

// runner is a berth-runner that logs how long each plugin has run.
type runner struct {
	cmd *exec.Cmd
	log bytes.Buffer
}

// startRunner starts berth-runner beside the agent of a root, and waits until it answers.
func startRunner(ctx context.Context, o options, at string) (*runner, error) {
	r := &runner{cmd: exec.Command(filepath.Join(o.bin, "berth-runner"), "--root", at, "--bin-dir", o.peers, "--log-level", "debug")}
	r.cmd.Stderr = &r.log
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting berth-runner: %w", err)
	}
	for end := time.Now().Add(opTimeout); ; {
		_, err := os.Stat(root.Dir(at).RunnerSocket())
		if err == nil {
			return r, nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			r.stop()
			return nil, fmt.Errorf("waiting for berth-runner: %w\n%s", err, &r.log)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// stop ends the process, if that is still there.
func (r *runner) stop() {
	if r.cmd.ProcessState == nil {
		_ = r.cmd.Process.Kill() // Wait says that it has ended
		_ = r.cmd.Wait()
	}
}

// executed is what berth-runner logs of an execution: verb, container, and how long it took.
var executed = regexp.MustCompile(`msg="a plugin has run" plugin="\S+ (\S+)" container=(\S+) .* ran=(\S+)`)

// ran ends berth-runner, and returns the sum of its executions' times by "VERB CONTAINER".
func (r *runner) ran() (map[string]time.Duration, error) {
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return nil, fmt.Errorf("ending berth-runner: %w", err)
	}
	if err := r.cmd.Wait(); err != nil {
		return nil, fmt.Errorf("ending berth-runner: %w", err)
	}
	sums := map[string]time.Duration{}
	for line := range strings.Lines(r.log.String()) {
		m := executed.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		took, err := time.ParseDuration(m[3])
		if err != nil {
			return nil, fmt.Errorf("berth-runner's log: %q: %w", line, err)
		}
		sums[m[1]+" "+m[2]] += took
	}
	return sums, nil
}
