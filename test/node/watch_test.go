package node

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/nettest"
)

// seldom lets the sweep come so late that it mends nothing in a test.
const seldom = "sweepInterval: 1h\npools:\n- name: default\n  cidrs: [10.88.0.0/24, fd00:88::/64]\n"

// startSeldom starts an agent whose sweep does not come.
func startSeldom(t *testing.T) *agent {
	t.Helper()
	a := newAgent(t, nil)
	a.configure(seldom)
	a.startWatched()
	return a
}

// Somebody mounts a folder over the queue's, which the agent does not take because others can write into
// it, or puts a file in the place of the queue's folder. As long as nothing new can be in the queue, the
// agent mends a link at once. It leaves the link down as long as a deletion may wait, and mends the link
// soon after that, without a sweep.
func TestMendedBesideQueueThatFails(t *testing.T) {
	a := startSeldom(t)
	_, got := a.podsOf(2)
	folder := deletions.Path(a.root)
	isUp := func(i int) bool { return nettest.Link(t, got[i].host).Attrs().Flags&net.FlagUp != 0 }
	must(t, unix.Mount("none", folder, "tmpfs", unix.MS_RDONLY, "mode=777"))
	unmount := sync.OnceFunc(func() { must(t, unix.Unmount(folder, unix.MNT_DETACH)) })
	t.Cleanup(unmount)
	nettest.Run(t, nil, "ip link set "+got[0].host+" down")
	eventuallyWithin(t, "the link to be mended beside a folder that the agent does not take", 10*time.Second, func() bool { return isUp(0) })
	unmount()

	file := folder + ".file"
	must(t, os.WriteFile(file, nil, 0o600))
	swap := func() { must(t, unix.Renameat2(unix.AT_FDCWD, folder, unix.AT_FDCWD, file, unix.RENAME_EXCHANGE)) }
	swap()
	healed := false
	t.Cleanup(func() {
		if !healed {
			swap()
		}
	})
	eventuallyWithin(t, "the agent to see it", 10*time.Second, func() bool { return strings.Contains(a.log.String(), "not a directory") })
	nettest.Run(t, nil, "ip link set "+got[1].host+" down")
	const failed = "could not mend what others have changed"
	eventuallyWithin(t, "a try to mend the link", 10*time.Second, func() bool { return strings.Contains(a.log.String(), failed) })
	if isUp(1) {
		t.Error("the link is up, although a deletion may wait")
	}
	swap()
	healed = true
	eventuallyWithin(t, "the link to be mended once the queue can be read", 10*time.Second, func() bool { return isUp(1) })
	if n := strings.Count(a.log.String(), failed); n != 1 {
		t.Errorf("it says %d times that it could not mend", n)
	}
}

// The agent mends changes of others to the host's side of a pod when they happen, and not only
// when the sweep comes. A link that is set down and up looks well, and has lost its IPv6
// addresses and routes; amazon-vpc-cni #1600, #3309.
func TestMendedAtOnce(t *testing.T) {
	a := startSeldom(t)
	hasAddresses(t)
	pods, _ := a.podsOf(1)
	drifts := a.follow(t)
	damaged := func(t *testing.T, f func()) {
		t.Helper()
		before := drifts()
		f()
		nettest.Eventually(t, "an event that tells of it", func() bool { return drifts() > before })
		nettest.Eventually(t, "the damage to be mended", func() bool { return a.disagreements(t) == "" })
	}
	for i, c := range []struct{ name, damage string }{
		{"down and up", "link set HOST down; link set HOST up"},
		{"down", "link set HOST down"},
		{"route", "route del ADDR4"},
		{"IPv6 route", "-6 route del ADDR6"},
		{"MTU", "link set HOST mtu 1300"},
		{"MTU too small for IPv6", "link set HOST mtu 1000"},
		{"IPv6 ended and back", "link set HOST mtu 1000; link set HOST mtu 1500"},
		{"MAC", "link set HOST address 02:00:00:00:00:09"},
		{"alias", "link set HOST alias mine"},
		{"group", "link set HOST group 0"},
		{"name", "link set HOST name other"},
		{"name and group at once", "link set dev HOST group 0 name other2"},
		{"deleted", "link del HOST"},
		{"pool's route", "route del unreachable 10.88.0.0/24"},
		{"pool's IPv6 route", "-6 route del unreachable fd00:88::/64"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := nettest.Pod(t)
			got := a.add(fmt.Sprint("d", i), pod)
			host, addrs := got.host, got.addrs
			replace := strings.NewReplacer("HOST", host, "ADDR4", addrs[0].String(), "ADDR6", addrs[1].String())
			damaged(t, func() {
				for command := range strings.SplitSeq(replace.Replace(c.damage), "; ") {
					nettest.Run(t, nil, "ip "+command)
				}
			})
			pingAll(t, pods[0], got)
			pingAll(t, nil, got)
		})
	}
	t.Run("port of a bridge", func(t *testing.T) {
		nettest.Run(t, nil, "ip link add a-bridge type bridge")
		t.Cleanup(func() { nettest.Run(t, nil, "ip link del a-bridge") })
		got := a.add("port", nettest.Pod(t))
		damaged(t, func() { nettest.Run(t, nil, "ip link set "+got.host+" master a-bridge") })
		pingAll(t, pods[0], got)
	})
	t.Run("deleted in the pod", func(t *testing.T) {
		pod := nettest.Pod(t)
		got := a.add("inside", pod)
		damaged(t, func() { nettest.Run(t, pod, "ip link del eth0") })
		pingAll(t, pods[0], got)
	})
}

// follow counts the agent's events of type drift from now on.
func (a *agent) follow(t *testing.T) (drifts func() int64) {
	t.Helper()
	var n atomic.Int64
	heard, ended := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	once := sync.OnceFunc(func() { close(heard) })
	go func() {
		defer close(ended)
		for e, err := range a.api.Events(ctx, nil, once) {
			if err != nil {
				return
			}
			if e.Type == "drift" {
				n.Add(1)
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	<-heard
	return n.Load
}

// disagreements is what an audit finds.
func (a *agent) disagreements(t *testing.T) string {
	t.Helper()
	audit, err := a.api.Audit(context.Background())
	must(t, err)
	s := ""
	for _, f := range audit.Findings {
		s += fmt.Sprintf("%s %s: %s\n", f.Type, f.What, f.Detail)
	}
	return s
}
