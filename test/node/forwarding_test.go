package node

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// Forwarding that somebody switches off, for the node or for a pod's link, is turned on again at
// once, with an event that says what was wrong and another that it is mended: without forwarding
// the pods are dead, although nothing of Berth's own has changed. Where the configuration leaves
// forwarding alone, so does the agent.
func TestForwardingIsTurnedOnAgain(t *testing.T) {
	a := startSeldom(t)
	hasAddresses(t)
	pods, got := a.podsOf(2)
	var mu sync.Mutex
	var told []string // type and message of the events
	heard := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e, err := range a.api.Events(ctx, nil, sync.OnceFunc(func() { close(heard) })) {
			if err != nil {
				return
			}
			mu.Lock()
			told = append(told, e.Type+" "+e.Message)
			mu.Unlock()
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	<-heard
	wasTold := func(typ, what string) bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.ContainsFunc(told, func(s string) bool { return strings.HasPrefix(s, typ+" ") && strings.Contains(s, what) })
	}
	value := func(name string) string {
		v, err := ns.Sysctl(name)
		must(t, err)
		return v
	}
	for _, c := range []struct{ name, says string }{
		{"ipv4/ip_forward", "net.ipv4.ip_forward was switched off"},
		{"ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding was switched off"},
		{"ipv4/conf/" + got[0].host + "/forwarding", "forwarding 0, not 1"},
		{"ipv6/conf/" + got[1].host + "/forwarding", "forwarding 0, not 1"},
	} {
		mu.Lock()
		told = nil
		mu.Unlock()
		nettest.Sysctl(t, nil, c.name, "0")
		nettest.Eventually(t, c.name+" to be on again", func() bool { return value(c.name) == "1" })
		for _, typ := range []string{api.EventDrift, api.EventMended} {
			nettest.Eventually(t, "an event of type "+typ+": "+c.says, func() bool { return wasTold(typ, c.says) })
		}
		pingAll(t, pods[0], got[1])
		pingAll(t, pods[1], got[0])
	}
	a.wantClean()

	a.configure(seldom + "forwarding: false\n")
	a.reload(inForce)
	mu.Lock()
	told = nil
	mu.Unlock()
	host := "ipv4/conf/" + got[0].host + "/forwarding"
	nettest.Sysctl(t, nil, host, "0")
	nettest.Sysctl(t, nil, "ipv4/ip_forward", "0")
	nettest.Run(t, nil, "ip link set "+got[1].host+" mtu 1400") // the monitor tells of this later
	nettest.Eventually(t, "a later change to be mended", func() bool { return wasTold(api.EventMended, "mtu 1400") })
	if wasTold(api.EventDrift, "forward") || value("ipv4/ip_forward") != "0" {
		t.Error("the agent turns forwarding on although it is to leave it alone")
	}
	a.wantClean()
	a.configure(seldom)
	a.reload(inForce)
	nettest.Eventually(t, "forwarding to be on", func() bool { return value(host) == "1" })
}
