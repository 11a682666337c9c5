package rtnl_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nlsock"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

// A link with all second names that the kernel allows is read by its name and in a list, as other links are. A macvlan can say
// more than that: until FlushSources nothing reads it, nor any list of links. Indices lists it all the same.
func TestLongLinks(t *testing.T) {
	nettest.Need(t)
	at := nettest.Node(t)
	c := open(t, at)
	must(t, c.Do(rtnl.AddVeth(rtnl.End{Name: "named"}, 0, rtnl.End{Name: "end"}, nettest.Pod(t).Fd())))
	nettest.Run(t, at, "ip link add link named name many type macvlan mode source")
	nettest.SecondNames(t, at, "named", 480)
	var named, many rtnl.Macvlan
	must(t, c.Do(rtnl.GetMacvlan("named", &named), rtnl.GetMacvlan("many", &many)))
	list := func() (names []string, err error) {
		_, err = c.Links(func(l rtnl.Link) (bool, error) { names = append(names, l.Name); return false, nil })
		return names, err
	}
	if names, err := list(); err != nil || !slices.Equal(names, []string{"lo", "named", "many"}) || !named.Veth {
		t.Errorf("%+v, in a list of %q, %v", named, names, err)
	}

	nettest.Sources(t, at, "many", nlsock.LongSize/12)
	_, inList := list()
	for what, err := range map[string]error{"one": c.Do(rtnl.GetMacvlan("many", &many)), "a list": inList} {
		if !errors.Is(err, nlsock.ErrLong) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if all, err := c.Indices(); err != nil || !slices.Equal(all, []int{1, named.Index, many.Index}) {
		t.Errorf("the indices are %d, %v", all, err)
	}
	must(t, c.Do(rtnl.FlushSources(many.Index), rtnl.GetMacvlan("many", &many)))
	if names, err := list(); err != nil || len(names) != 3 {
		t.Errorf("a list of %q, %v", names, err)
	}
	must(t, c.Do(rtnl.SetMacvlanMode(many.Index, rtnl.MacvlanBridge)))
	for index, want := range map[int]error{named.Index: kernel.ErrUnsupported, many.Index: kernel.ErrInvalid, many.Index + 1: kernel.ErrNotFound} {
		if err := c.Do(rtnl.FlushSources(index)); !errors.Is(err, want) {
			t.Errorf("link %d: %v", index, err)
		}
	}
}
