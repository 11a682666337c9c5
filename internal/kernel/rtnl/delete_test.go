package rtnl_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

// A program in a pod uses its interface while the node deletes links, one by one and by their group. The
// links are gone, Delete does not wait for the program, and no other request waits either. Delete says
// when the program has let its interface go.
func TestDeleteHeldLink(t *testing.T) {
	for _, way := range []string{"alone", "group"} {
		t.Run(way, func(t *testing.T) {
			const group = 78
			c := open(t, nil)
			t.Cleanup(func() { c.Do(rtnl.DelGroup(group)) }) // after the interface is let go
			var held, free rtnl.Link
			pod, other := nettest.Pod(t), nettest.Pod(t)
			must(t, c.Do(rtnl.AddVeth(rtnl.End{Name: "held"}, group, rtnl.End{Name: "eth0"}, pod.Fd())))
			must(t, c.Do(rtnl.AddVeth(rtnl.End{Name: "free"}, group, rtnl.End{Name: "eth0"}, other.Fd())))
			must(t, c.Do(rtnl.GetLink("held", &held), rtnl.GetLink("free", &free), rtnl.SetLink("held", rtnl.Up())))
			nettest.Run(t, pod, "ip link set eth0 up")
			letGo := nettest.HoldLink(t, pod, "eth0")
			request, indices := rtnl.DelLinkAt(held.Index), []int{held.Index}
			if way == "group" {
				request, indices = rtnl.DelGroup(group), []int{held.Index, free.Index}
			}
			lingers, err := c.Delete(request, indices...)
			if err != nil || lingers == nil {
				t.Fatalf("the kernel has answered: %v", err)
			}
			if err := c.Do(rtnl.GetLink("held", &held)); !errors.Is(err, kernel.ErrNotFound) {
				t.Errorf("the link is there: %v", err)
			}
			for i := range 10 { // more than a Conn has sockets for other requests
				must(t, c.Do(rtnl.AddVeth(rtnl.End{Name: fmt.Sprint("more", i)}, 0, rtnl.End{Name: fmt.Sprint("peer", i)}, other.Fd())))
				must(t, c.Do(rtnl.DelLink(fmt.Sprint("more", i))))
			}
			select {
			case <-lingers:
				t.Error("the kernel has let the link go while a program uses it")
			default:
			}
			letGo()
			<-lingers
		})
	}
}

// A Conn that is closed waits for no deletion, and a deletion under way ends with an error.
func TestCloseBesideDelete(t *testing.T) {
	c, err := rtnl.Open(nil)
	must(t, err)
	pod := nettest.Pod(t)
	var held rtnl.Link
	must(t, c.Do(rtnl.AddVeth(rtnl.End{Name: "held"}, 0, rtnl.End{Name: "eth0"}, pod.Fd()), rtnl.GetLink("held", &held), rtnl.SetLink("held", rtnl.Up())))
	nettest.Run(t, pod, "ip link set eth0 up")
	letGo := nettest.HoldLink(t, pod, "eth0")
	ended := make(chan error, 1)
	go func() {
		_, err := c.Delete(rtnl.DelLinkAt(held.Index), held.Index)
		ended <- err
	}()
	nettest.Eventually(t, "the link is gone", func() bool { return c.Do(rtnl.GetLinkAt(held.Index, &held)) != nil })
	must(t, c.Close())
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("the deletion ends with %v", err)
	}
	letGo()
}

// A deletion that the kernel refuses, and one of a link that is gone, answer as Do does.
func TestDeleteAnswers(t *testing.T) {
	c := open(t, nil)
	for range 20 { // each socket goes back
		if lingers, err := c.Delete(rtnl.DelLinkAt(1<<30), 1<<30); lingers != nil || !errors.Is(err, kernel.ErrNotFound) {
			t.Fatalf("no such link: %v", err)
		}
	}
	if _, err := c.Delete(rtnl.DelLinkAt(1), 1); err == nil || errors.Is(err, kernel.ErrNotFound) {
		t.Errorf("lo: %v", err)
	}
}
