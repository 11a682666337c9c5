package rtnl_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// A link's second name and its index lead to the link, even after somebody has renamed it.
func TestLinkByAnyName(t *testing.T) {
	c := open(t, nil)
	const name = "btest0123456789"
	l, _ := veth(t, c, name)
	must(t, c.Do(rtnl.AddAltName(name, stamp.AltName(name))))
	if err := c.Do(rtnl.AddAltName(name, stamp.AltName(name))); !errors.Is(err, kernel.ErrExists) {
		t.Errorf("a second name given again: %v", err)
	}
	must(t, c.Do(rtnl.Rename(l.Index, "away0")))
	l.Name, l.Given = "away0", name
	var byAlt, byIndex rtnl.Link
	must(t, c.Do(rtnl.GetAltLink(stamp.AltName(name), &byAlt), rtnl.GetLinkAt(l.Index, &byIndex)))
	anyName, err := c.Link(name)
	must(t, err)
	if byAlt != l || byIndex != l || anyName != l {
		t.Errorf("found %+v, %+v, %+v, not %+v", byAlt, byIndex, anyName, l)
	}
	if now, err := c.Names(1, 1<<30, l.Index); err != nil || !slices.Equal(now, []string{"lo", "", "away0"}) {
		t.Errorf("links are called %q, %v", now, err)
	}
	must(t, c.Do(rtnl.SetLinkAt(l.Index, rtnl.Group(9), rtnl.Down()), rtnl.GetLinkAt(l.Index, &byIndex)))
	if byIndex.Group != 9 || byIndex.Up {
		t.Errorf("the link is %+v", byIndex)
	}

	must(t, c.Do(rtnl.DelLinkAt(l.Index)))
	_, noLink := c.Link(name)
	for what, err := range map[string]error{
		"link":   noLink,
		"alt":    c.Do(rtnl.GetAltLink(stamp.AltName(name), &byAlt)),
		"delete": c.Do(rtnl.DelLinkAt(l.Index)),
		"set":    c.Do(rtnl.SetLinkAt(l.Index, rtnl.Down())),
	} {
		if !errors.Is(err, kernel.ErrNotFound) {
			t.Errorf("%s of a link that is not there: %v", what, err)
		}
	}
}
