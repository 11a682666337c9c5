package rtnl_test

import (
	"errors"
	"fmt"
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
			defer c.Do(rtnl.DelGroup(group))
			var held, free rtnl.Link
			pod, other := nettest.Pod(t), nettest.Pod(t)
			must(t, c.Do(rtnl.AddVeth(rtnl.End{Name: "held"}, group, rtnl.End{Name: "eth0"}, pod.Fd())))
			must(t, c.Do(rtnl.AddVeth(rtnl.End{Name: "free"}, group, rtnl.End{Name: "eth0"}, other.Fd())))
			must(t, c.Do(rtnl.GetLink("held", &held), rtnl.GetLink("free", &free), rtnl.SetLink("held", rtnl.Up())))
			must(t, nettest.DoIn(pod, func() error {
				here, err := rtnl.Here()
				if err != nil {
					return err
				}
				defer here.Close()
				return here.Do(rtnl.SetLink("eth0", rtnl.Up()))
			}))
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
