package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/node/nodetest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/traffic"
)

// clocked is an agent on a node in memory, in a bubble of synctest, whose wall
// clock somebody sets.
type clocked struct {
	*Agent
	t     *testing.T
	world *nodetest.Node
	root  root.Dir
	end   func() // ends what the agent does on its own
}

// inClocked runs a test in a bubble.
func inClocked(t *testing.T, test func(*clocked)) {
	dir := nettest.Memory(t)
	defer os.RemoveAll(dir)
	synctest.Test(t, func(t *testing.T) {
		c := &clocked{t: t, root: root.Dir(dir), world: nodetest.New()}
		c.open()
		defer func() { c.close() }()
		test(c)
	})
}

func (c *clocked) open() {
	c.t.Helper()
	conf, err := config.Load(c.root, config.Flags{Pools: []string{"default=10.88.0.0/24"}})
	must(c.t, err)
	conf.Pools[0].Cooldown = time.Minute
	o := Options{Config: conf, Version: "test", Options: daemon.Options{Root: c.root, Log: slog.New(slog.DiscardHandler)}}
	unharmed := c.world.Open(fault.New(1<<30, fault.FailBefore), nil)
	c.Agent, err = open(o, unharmed, false)
	must(c.t, err)
	must(c.t, c.Restore(context.Background()))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func(a *Agent) { a.traffic.KeepRinsed(ctx); close(done) }(c.Agent)
	c.end = func() { cancel(); <-done }
}

func (c *clocked) close() {
	c.t.Helper()
	c.end()
	must(c.t, c.Agent.Close())
}

func (c *clocked) when() server.When {
	time.Sleep(time.Nanosecond) // so that no two requests begin at the same time
	return server.When{Started: c.node.Boottime(), Deadline: c.node.Boottime() + int64(time.Minute)}
}

// add attaches a container with the address 10.88.0.7.
func (c *clocked) add(container string) error {
	pod := c.world.Pod("/run/netns/" + container)
	_, err := c.Add(context.Background(), api.AddRequest{
		ContainerID: container, Ifname: "eth0", Netns: api.Netns(pod.Ref()),
		Config: json.RawMessage(`{"cniVersion":"1.1.0","name":"net","type":"berth-cni","runtimeConfig":{"ips":["10.88.0.7"]}}`),
	}, c.when())
	return err
}

// play lets the events of a script happen: "pass 10s", "step -1h" of the wall
// clock, "crash", "reboot", "del" of the container a.
func (c *clocked) play(script string) {
	c.t.Helper()
	for _, event := range strings.Split(script, ", ") {
		what, arg, _ := strings.Cut(event, " ")
		d, _ := time.ParseDuration(arg)
		switch what {
		case "pass":
			time.Sleep(d)
		case "del":
			if _, _, err := c.Delete(context.Background(), key("a"), true, c.when()); err != nil {
				c.t.Fatal(err)
			}
		case "step":
			c.world.SetClock(d)
		case "crash", "reboot":
			c.close()
			if what == "reboot" {
				c.world.Reboot()
				must(c.t, os.RemoveAll(c.root.Run()))
			}
			c.open()
		default:
			c.t.Fatal(fmt.Sprint("no such event: ", event))
		}
	}
}

// The agent gives an address out when the address's cooldown (1 min) is over, neither earlier
// nor later, whatever the wall clock is set to. It rinses the address then, even if nobody asks
// for it.
func TestCooldownWhileTheClockIsSet(t *testing.T) {
	for script, left := range map[string]time.Duration{
		"pass 10s":                     50 * time.Second,
		"step 1h":                      time.Minute,
		"step -1h, pass 10s":           50 * time.Second,
		"step 1h, crash":               time.Minute,
		"pass 10s, crash, step 1h":     50 * time.Second,
		"step -1h, pass 10s, crash":    50 * time.Second,
		"crash, step -1h, pass 10s":    50 * time.Second,
		"step 1h, crash, step -2h":     time.Minute,
		"pass 10s, reboot":             50 * time.Second,
		"pass 10s, reboot, step 1h":    50 * time.Second,
		"pass 10s, reboot, step -1h":   50 * time.Second,
		"pass 10s, step -1h, reboot":   time.Minute, // the cooldown begins anew
		"step -1m, pass 70s, reboot":   50 * time.Second,
		"step 1h, pass 2m, step -1h":   0,
		"step -1h, pass 2m, crash":     0,
		"pass 2m, step -1h, crash":     0,
		"step -1h, reboot, pass 61s":   0,
		"step 1h, reboot":              0, // only the wall clock tells how much time has passed
		"step 1h, crash, reboot":       0,
		"crash, step -1h, pass 2m":     0,
		"step -24h, crash, step 24h":   time.Minute,
		"pass 30s, crash, pass 10s":    20 * time.Second,
		"step 30s, crash, step -1m":    time.Minute,
		"pass 1s, step 59500ms, crash": 59 * time.Second,
		// Set before the rest begins.
		"step 1h, del":                              time.Minute,
		"step 1h, crash, del, pass 10s":             50 * time.Second,
		"step -1h, crash, del, pass 10s":            50 * time.Second,
		"crash, step -1h, del, pass 10s, crash":     50 * time.Second,
		"step 1h, del, pass 10s, crash, reboot":     50 * time.Second,
		"step -1h, crash, step 2h, del, pass 2m":    0,
		"crash, step 1h, del, step -1h, pass 10s":   50 * time.Second,
		"step 1h, crash, step 1h, del, step -24h":   time.Minute,
		"step 1h, del, crash, step 1h, pass 50s":    10 * time.Second,
		"crash, step 24h, crash, del, step -24h":    time.Minute,
		"step 24h, crash, del, step -24h, reboot":   time.Minute,
		"step 24h, reboot, step -24h, crash, del":   time.Minute,
		"step -24h, reboot, step 24h, crash, del":   time.Minute,
		"step 24h, del, pass 10s, reboot, step 24h": 50 * time.Second,
	} {
		t.Run(script, func(t *testing.T) {
			inClocked(t, func(c *clocked) {
				must(t, c.add("a"))
				if !strings.Contains(script, "del") {
					c.play("del")
				}
				c.play(script)
				if left > 0 {
					time.Sleep(left - time.Second)
					c.Sweep(context.Background()) // which asks for what has drained
					if _, err := c.Status(context.Background(), ""); err != nil {
						t.Errorf("status: %v", err)
					}
					until := c.node.Wall().Add(time.Second).UTC().Format(time.RFC3339)
					if err := c.add("early"); !isCode(err, 101) || !strings.Contains(err.Error(), "until "+until) {
						t.Errorf("within the cooldown, which ends at %s: %v", until, err)
					}
					time.Sleep(time.Second)
				}
				time.Sleep(2 * traffic.RinseEvery)
				synctest.Wait()
				if resting := c.Pools()[0].CIDRs[0].Resting; resting > 0 {
					t.Errorf("%d are not rinsed after their cooldown", resting)
				}
				if err := c.add("heir"); err != nil {
					t.Errorf("after the cooldown: %v", err)
				}
			})
		})
	}
}

// GC spares attachments that are younger than its minimum age, which counts by the time that
// has passed, and not by the wall clock.
func TestGCWhileTheClockIsSet(t *testing.T) {
	for script, age := range map[string]time.Duration{
		"pass 10s":                   10 * time.Second,
		"pass 10s, step 1h":          10 * time.Second,
		"step -1h, pass 10s":         10 * time.Second,
		"pass 10s, step 1h, crash":   10 * time.Second,
		"step -1h, crash, pass 10s":  10 * time.Second,
		"crash, step 24h, pass 10s":  10 * time.Second,
		"pass 1h, step -24h":         time.Hour,
		"step -24h, pass 1h, crash":  time.Hour,
		"step 1h, crash, step -50h":  0,
		"pass 90s, crash, pass 910s": 1000 * time.Second,
	} {
		t.Run(script, func(t *testing.T) {
			inClocked(t, func(c *clocked) {
				must(t, c.add("a"))
				c.play(script)
				for _, min := range []time.Duration{0, age - time.Second, age + time.Second} {
					want := 1
					if min > age {
						want = 0
					}
					d, err := c.GC(context.Background(), api.GCRequest{Network: "net", MinAge: min, DryRun: true}, c.when())
					if err != nil || len(d.IDs) != want {
						t.Errorf("with a minimum age of %v, at %v: %+v, %v; want %d", min, age, d, err, want)
					}
				}
			})
		})
	}
}
