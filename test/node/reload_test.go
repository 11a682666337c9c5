package node

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// SIGHUP puts a changed file into force: new pools at once, and removed pools leave when nobody
// uses them any more. A bad file changes nothing.
func TestReloadPools(t *testing.T) {
	const quick = "cooldown: 1ms\nsweepInterval: 1s\npools:\n- {name: default, cidrs: [10.88.0.0/24]}\n"
	const extra = quick + "- {name: extra, cidrs: [10.89.0.0/24, 'fd00:89::/64']}\n"
	a := newAgent(t, nettest.Node(t))
	a.configure(quick)
	a.start()
	pod, other := nettest.Pod(t), nettest.Pod(t)
	_, err := a.tryAdd("c", pod, `"pool":"extra"`)
	programs.WantError(t, err, 7, "extra")

	a.configure(extra)
	a.reload(inForce)
	got := a.add("c", pod, `"pool":"extra"`)
	if s := fmt.Sprint(got.addrs); s != "[10.89.0.1 fd00:89::1]" {
		t.Errorf("addresses of the new pool: %s", s)
	}
	plain := a.add("plain", other)
	nettest.Ping(t, pod, plain.addrs[0])
	a.wantClean()

	for _, bad := range []string{"pools: [", "flavour: 1\n" + extra, extra + "- {name: more, cidrs: [10.89.0.0/16]}\n", "pools: []\n"} {
		a.configure(bad)
		a.reload(notInForce)
		again := nettest.Pod(t)
		a.add("again", again, `"pool":"extra"`)
		a.del("again", wait)
	}
	must(t, os.Remove(a.root.Config()))
	a.reload(notInForce) // no pool is left

	a.configure(quick)
	a.reload(inForce)
	_, err = a.tryAdd("d", nettest.Pod(t), `"pool":"extra"`)
	programs.WantError(t, err, 7, "extra")
	nettest.Ping(t, other, got.addrs[0]) // who is there stays
	if routes := a.routes(); !strings.Contains(routes, "unreachable 10.89.0.0/24") {
		t.Errorf("the route of a pool in use is gone:\n%s", routes)
	}
	a.wantClean()
	a.del("c", wait)
	nettest.Eventually(t, "the drained pool to be given back", func() bool {
		ps, err := a.api.Pools(t.Context())
		return err == nil && len(ps) == 1 && !strings.Contains(a.routes(), "10.89.0.0/24") && !strings.Contains(a.routes(), "fd00:89::/64")
	})
	a.wantClean()
	a.releaseAll()
}

// An address of a pool that was taken out of the configuration rests for the cooldown of that
// pool, and not for the cooldown of the pools that are left, because the pool may come back at
// any time. A restart in between does not make the agent forget that cooldown.
func TestAddressesOfARemovedPoolRest(t *testing.T) {
	const without = "pools:\n- {name: b, cidrs: [10.89.0.0/24], cooldown: 1ms}\n"
	const with = without + "- {name: a, cidrs: [10.88.0.0/30]}\n" // two addresses
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart ", restart), func(t *testing.T) {
			a := newAgent(t, nil)
			a.configure(with)
			a.startWatched()
			turn := func(config string) {
				a.configure(config)
				if restart {
					a.kill()
					a.start()
				} else {
					a.reload(inForce)
				}
			}
			got := a.add("c", nettest.Pod(t), `"pool":"a"`)
			turn(without)
			a.del("c", wait)
			turn(with)
			other := a.add("d", nettest.Pod(t), `"pool":"a"`)
			if other.addrs[0] == got.addrs[0] {
				t.Errorf("%s is given again", got.addrs[0])
			}
			_, err := a.tryAdd("e", nettest.Pod(t), `"pool":"a"`)
			programs.WantError(t, err, 100, "1 in cooldown")
		})
	}
}

func (a *agent) routes() string { return nettest.Snapshot(a.t, a.node).Only("route").String() }

// SIGTERM ends berthd with 0, and the pods do not notice. The node stays as it
// is, but for the socket; a plugin then says that the agent is away.
func TestStop(t *testing.T) {
	a := startAgent(t, pools)
	pods, got := a.podsOf(3)
	before := seen(t)
	a.stop()
	nettest.Same(t, before, seen(t), "stopping changed the node")
	if _, err := os.Lstat(a.root.Socket()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	_, err := a.tryAdd("d", pods[0])
	programs.WantError(t, err, 11, "berthd")
	_, err = a.exec("STATUS", "", "")
	programs.WantError(t, err, 50, "berthd")
	for i := range pods {
		pingAll(t, pods[i], got[(i+1)%3])
	}
	a.start()
	nettest.Same(t, before, seen(t), "starting again changed the node")
	a.wantClean()
}

// load is a number of runtimes that attach and detach pods until each has done
// its share, while the agent is killed.
type load struct {
	*agent
	mu    sync.Mutex
	done  int                   // operations that the agent has answered
	given map[netip.Addr]string // which container got an address
}

// answered counts an operation and returns how many there have been.
func (l *load) answered() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done++
	return l.done
}

// again repeats an operation as a runtime does, as long as the agent is away or
// says "try again".
func (l *load) again(op func() error) error {
	for {
		err := op()
		var e *api.Error
		if !errors.As(err, &e) || e.Code != 11 {
			l.answered()
			return err
		}
	}
}

// cycle attaches and detaches one container.
func (l *load) cycle(container string, pod *ns.Netns) error {
	var got attached
	err := l.again(func() (err error) {
		got, err = l.tryAdd(container, pod)
		return err
	})
	if err != nil {
		return fmt.Errorf("ADD of %s: %w", container, err)
	}
	l.mu.Lock()
	for _, addr := range got.addrs {
		if had := l.given[addr]; had != "" {
			err = fmt.Errorf("%s was given to %s, and then to %s", addr, had, container)
		}
		l.given[addr] = container
	}
	l.mu.Unlock()
	if err != nil {
		return err
	}
	if err := l.again(func() error { return l.tryDel(container, pod.Ref().Path) }); err != nil {
		return fmt.Errorf("DEL of %s: %w", container, err)
	}
	return nil
}

// berthd is killed and started again while eight runtimes attach and detach.
// Each operation is repeated until it is answered; then nothing is left, and no
// address was given twice.
func TestKillUnderLoad(t *testing.T) {
	const runtimes, cycles, kills = 8, 12, 6
	a := newAgent(t, nil)
	a.configure("cooldown: 1h\npools:\n- {name: default, cidrs: [10.88.0.0/20, 'fd00:88::/64']}\n")
	a.startWatched()
	l := &load{agent: a, given: map[netip.Addr]string{}}
	var busy sync.WaitGroup
	for i := range runtimes {
		pod := nettest.Pod(t)
		busy.Go(func() {
			for j := range cycles {
				if err := l.cycle(fmt.Sprintf("r%d-%d", i, j), pod); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { busy.Wait(); close(ended) }()
	killed := 0
	for ; killed < kills; killed++ {
		l.waitFor((killed+1)*2*runtimes*cycles/(kills+1), ended)
		a.kill()
		if err := a.tryStart(); err != nil {
			t.Error(err)
			break
		}
	}
	<-ended
	t.Logf("%d operations, %d kills, %d addresses", l.done, killed, len(l.given))
	a.wantGone()
}

// waitFor waits until n operations were answered, or all have ended.
func (l *load) waitFor(n int, ended <-chan struct{}) {
	nettest.Eventually(l.t, fmt.Sprint(n, " operations"), func() bool {
		select {
		case <-ended:
			return true
		default:
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.done >= n
	})
}
