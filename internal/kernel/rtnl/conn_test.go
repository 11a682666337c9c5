package rtnl_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

// Every request gets its own answer, however many there are, and the kernel goes on after a request
// that fails.
func TestEach(t *testing.T) {
	c := open(t, nil)
	const n = 100
	links := make([]rtnl.Link, n)
	var rs []rtnl.Request
	for i := range n {
		name := "lo"
		if i%3 == 0 {
			name = fmt.Sprint("none", i)
		}
		rs = append(rs, rtnl.GetLink(name, &links[i]))
	}
	for i, err := range c.Each(rs...) {
		if i%3 != 0 {
			if err != nil || links[i].Name != "lo" || links[i].Index != 1 {
				t.Errorf("request %d: %+v, %v", i, links[i], err)
			}
			continue
		}
		if !errors.Is(err, kernel.ErrNotFound) || !errors.Is(err, unix.ENODEV) ||
			!strings.HasPrefix(err.Error(), fmt.Sprintf("ip link show none%d: ", i)) {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if err := c.Do(rs[1], rs[3], rs[6]); err == nil || !strings.Contains(err.Error(), "none3:") {
		t.Errorf("the first error is %v", err)
	}
	if errs := c.Each(); len(errs) != 0 {
		t.Errorf("no requests have answers %v", errs)
	}
}

// An error contains the kernel's own words.
func TestErrorWords(t *testing.T) {
	c := open(t, nil)
	err := c.Do(rtnl.AddAddress(rtnl.Address{Prefix: prefix("fd88::7/128"), Index: 999}))
	if err == nil || !strings.Contains(err.Error(), "(") || !strings.HasPrefix(err.Error(), "ip addr add fd88::7/128 dev 999 nodad noprefixroute: ") {
		t.Errorf("the error is %v", err)
	}
}

// All requests of a Conn go to its namespace, whichever goroutine sends them, and share a
// few sockets.
func TestConcurrent(t *testing.T) {
	pod := nettest.Pod(t)
	_, inside := veth(t, open(t, nil), "conn0")
	for name, at := range map[string]*ns.Netns{"lo": pod, "eth0": inside} {
		c := open(t, at)
		if !c.Ref().Same(at.Ref()) {
			t.Errorf("%s is not %s", c.Ref(), at.Ref())
		}
		before := descriptors(t)
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				var l rtnl.Link
				if err := c.Do(rtnl.GetLink(name, &l)); err != nil || l.Name != name {
					t.Errorf("%+v, %v", l, err)
				}
				if err := c.Do(rtnl.GetLink("conn0", &l)); !errors.Is(err, kernel.ErrNotFound) {
					t.Errorf("the node's link is %v", err)
				}
			})
		}
		all.Wait()
		if opened := descriptors(t) - before; opened > 8 {
			t.Errorf("200 goroutines opened %d sockets", opened)
		}
	}
}

func descriptors(t *testing.T) int {
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(fds)
}

func TestHere(t *testing.T) {
	_, pod := veth(t, open(t, nil), "conn0")
	var c *rtnl.Conn
	must(t, pod.Do(func() (err error) { c, err = rtnl.Here(); return err }))
	defer c.Close()
	var l rtnl.Link
	must(t, c.Do(rtnl.GetLink("eth0", &l)))
}

func TestClose(t *testing.T) {
	c := open(t, nil)
	before := descriptors(t)
	var all sync.WaitGroup
	for range 20 { // some of the requests come while the Conn closes
		all.Go(func() {
			var l rtnl.Link
			if err := c.Do(rtnl.GetLink("lo", &l)); err != nil && !errors.Is(err, os.ErrClosed) {
				t.Error(err)
			}
		})
	}
	must(t, c.Close())
	all.Wait()
	if err := c.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closing again: %v", err)
	}
	if err := c.Do(rtnl.DelLink("lo")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a request afterwards: %v", err)
	}
	if now := descriptors(t); now >= before {
		t.Errorf("%d files were open before, and are %d", before, now)
	}
}

// A Conn asks again for a list that changed while the Conn read it. If the list changes every time the
// error says so.
func TestDumpInterrupted(t *testing.T) {
	c := open(t, nil)
	pod := nettest.Pod(t)
	add := func(name string, i int) {
		peer := rtnl.End{Name: fmt.Sprint("p", name, i)}
		if err := c.Do(rtnl.AddVeth(rtnl.End{Name: fmt.Sprint(name, i)}, 77, peer, pod.Fd())); err != nil {
			t.Error(err)
		}
	}
	const still = 300 // a list of several messages
	for i := range still {
		add("still", i)
	}
	defer c.Do(rtnl.DelGroup(77))
	churned := 0
	stop := nettest.Again(func() { add("churn", churned); churned++ })
	defer stop()
	nettest.Eventually(t, "a list that stays interrupted", func() bool {
		links, err := c.Veths(named("still"))
		if errors.Is(err, kernel.ErrInterrupted) {
			return true // with some of the links
		}
		must(t, err)
		if len(links) != still {
			t.Fatalf("%d of %d links are in a whole list", len(links), still)
		}
		return false
	})
	stop()
	if links, err := c.Veths(named("still")); err != nil || len(links) != still {
		t.Errorf("%d links, %v, when all is quiet", len(links), err)
	}
}
