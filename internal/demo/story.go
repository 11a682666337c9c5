package demo

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/berth-net/berth/conform/oracle"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/echo"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/process"
	"github.com/berth-net/berth/internal/root"
)

// The demo's measures.
const (
	podCount = 20
	leave    = 12 // pods that are detached before and after the agent is killed; the others stay
	killAt   = 6  // how many of these are detached when the agent is killed
	pool4    = "10.88.0.0/24"
	pool6    = "fd00:88::/112"

	echoWait = time.Second           // for a reply that has to come
	noEcho   = 20 * time.Millisecond // for a reply that must not come
)

// story is one run.
type story struct {
	*node
	*printer
	agent   *process.Agent
	network network
	pods    []*pod
	took    map[string][]time.Duration // by verb
	bare    oracle.State               // the node before the agent came
	idle    oracle.State               // with the agent, before there were attachments
	queued  int                        // deletions that waited for the agent
	residue []string                   // what is left behind, a line each
}

func (s *story) tell(ctx context.Context) error {
	s.printf("berth demo: a node of its own in fresh namespaces; this machine's network is not touched\n\n")
	for _, act := range []func(context.Context) error{
		s.start, s.attach, s.ping, s.detachAndKill, s.withoutAgent, s.restart, s.detach, s.audit, s.remove,
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := act(ctx); err != nil {
			return err
		}
	}
	s.times([]string{"ADD", "DEL"}, s.took)
	return nil
}

func (s *story) start(ctx context.Context) (err error) {
	s.took = map[string][]time.Duration{}
	if s.network, err = s.node.network(); err != nil {
		return err
	}
	for i := range podCount {
		p, err := s.makePod(i + 1)
		if err != nil {
			return err
		}
		s.pods = append(s.pods, p)
	}
	s.step("node", "%d pods' network namespaces made", podCount)
	if s.bare, err = look(); err != nil {
		return err
	}
	begun := time.Now()
	if err := s.serve(ctx); err != nil {
		return err
	}
	s.step("agent", "serves after %s, with pools %s and %s", round(time.Since(begun)), pool4, pool6)
	s.idle, err = look()
	return err
}

// patience is how long one step may take before the demo gives up.
const patience = 30 * time.Second

// serve starts the agent and returns when it serves.
func (s *story) serve(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it took longer than %s", patience))
	defer cancel()
	return s.agent.Start(ctx)
}

func (s *story) attach(ctx context.Context) error {
	var done atomic.Int64
	took, err := each(s.pods, func(p *pod) (bool, error) {
		err := s.network.attach(ctx, p)
		s.progress("attach", int(done.Add(1)), podCount)
		return true, err
	})
	s.took["ADD"] = took
	if err != nil {
		return err
	}
	s.step("attach", "%d pods attached by libcni and berth-cni, %d at once", len(took), width)
	return nil
}

func (s *story) ping(context.Context) error {
	return s.reach("ping", "from every pod to every other", s.pods)
}

// Address families, as `ip` names them.
const (
	family4 = "inet"
	family6 = "inet6"
)

var families = []string{family4, family6}

func familyOf(a netip.Addr) string {
	if a.Is4() {
		return family4
	}
	return family6
}

// pingAll pings every pod of to from every other pod of from, in a family. It returns how many
// echos were sent and how many were answered.
func pingAll(from, to []*pod, family string, wait time.Duration) (sent, answered int, err error) {
	for _, p := range from {
		err := p.netns.Do(func() error {
			for _, q := range to {
				if p == q {
					continue
				}
				sent++
				if echo.Send(q.addresses[family], wait) == nil {
					answered++
				}
			}
			return nil
		})
		if err != nil {
			return sent, answered, err
		}
	}
	return sent, answered, nil
}

// reach pings between all of pods, in both families.
func (s *story) reach(what, between string, pods []*pod) error {
	for _, family := range families {
		sent, answered, err := pingAll(pods, pods, family, echoWait)
		if err != nil {
			return err
		}
		if answered < sent {
			return fmt.Errorf("%d of %d %s echos %s are not answered", sent-answered, sent, family, between)
		}
		s.step(what, "%d of %d %s echos answered, %s", answered, sent, family, between)
	}
	return nil
}

// detachAndKill detaches pods, and kills the agent in the middle. A DEL that finds no agent
// cuts the pod off, writes the deletion into the agent's queue, and succeeds all the same.
func (s *story) detachAndKill(ctx context.Context) error {
	var done atomic.Int64
	took, err := each(s.pods[:leave], func(p *pod) (bool, error) {
		err := s.network.detach(ctx, p)
		n := int(done.Add(1))
		s.progress("detach", n, leave)
		if n == killAt {
			if err := s.agent.Kill(); err != nil {
				return false, err
			}
			s.step("kill", "SIGKILL to the agent, in the middle of detaching")
		}
		return true, err
	})
	s.took["DEL"] = took
	if err != nil {
		return err
	}
	queue, err := deletions.Look(root.Dir(s.root))
	if err != nil {
		return err
	}
	s.queued = len(queue.Pending)
	s.step("detach", "%d pods detached; %d DELs found no agent, cut the pod off and queued the deletion", done.Load(), s.queued)
	if s.queued == 0 {
		return fmt.Errorf("the agent was killed too late: nothing was left to detach")
	}
	return nil
}

// withoutAgent shows what holds while there is no agent: its ledger can be read, attached pods
// reach each other, and detached pods are cut off.
func (s *story) withoutAgent(context.Context) error {
	records, err := ledger.Read(root.Dir(s.root).Ledger(), nil)
	if err != nil {
		return err
	}
	wanted, releasing := map[string]bool{}, 0
	for _, o := range records.Owners {
		switch r, ok, err := attachment.Decode(o); {
		case err != nil:
			return err
		case ok && o.Wanted():
			wanted[r.ContainerID] = true
		case ok:
			releasing++
		}
	}
	s.step("ledger", "read without the agent: %d pods attached, %d of them with a queued deletion, %d being released",
		len(wanted), s.queued, releasing)
	var attached, detached []*pod
	missed := 0 // detached pods whose release the killed agent has not promised
	for _, p := range s.pods {
		switch {
		case !p.detached:
			attached = append(attached, p)
			continue
		case wanted[p.runtime.ContainerID]:
			missed++
		}
		detached = append(detached, p)
	}
	if missed > s.queued {
		return fmt.Errorf("%d pods are detached, but the ledger has them attached; %d deletions are queued", missed, s.queued)
	}
	if err := s.reach("ping", "between pods still attached, with no agent", attached); err != nil {
		return err
	}
	return s.outOfReach(attached[:1], detached)
}

// outOfReach pings detached pods from the pods in `from`, and fails if a detached pod answers.
func (s *story) outOfReach(from, detached []*pod) error {
	for _, family := range families {
		sent, answered, err := pingAll(from, detached, family, noEcho)
		if err != nil {
			return err
		}
		if answered > 0 {
			return fmt.Errorf("%d of %d detached pods answer %s echos", answered, sent, family)
		}
	}
	s.step("ping", "none of %d detached pods answers", len(detached))
	return nil
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
