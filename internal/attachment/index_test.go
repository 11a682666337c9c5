package attachment_test

import (
	"testing"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
)

// Wanted counts the attachments that are not being released, whatever becomes of each.
func TestWanted(t *testing.T) {
	x := attachment.NewIndex()
	owner := func(id hold.ID) *hold.Owner {
		r := attachment.Record{Key: attachment.Key{Network: "net", ContainerID: string(id), Ifname: "eth0"}}
		return &hold.Owner{ID: id, Meta: r.Encode()}
	}
	a, b := owner("a"), owner("b")
	going := *a
	going.Releasing = going.Releasing.AddDate(2000, 0, 0)
	moved := *b
	moved.Meta = attachment.Record{Key: attachment.Key{Network: "net", ContainerID: "c", Ifname: "eth0"}}.Encode()
	for i, step := range []struct {
		ledger.Edit
		want int
	}{
		{ledger.Edit{After: a}, 1},
		{ledger.Edit{Before: a, After: a}, 1},
		{ledger.Edit{After: b}, 2},
		{ledger.Edit{Before: b, After: &moved}, 2},
		{ledger.Edit{Before: a, After: &going}, 1},
		{ledger.Edit{After: &hold.Owner{ID: "table"}}, 1},
		{ledger.Edit{Before: &going}, 1},
		{ledger.Edit{Before: &moved}, 0},
	} {
		nettest.Must(t, x.Apply(step.Edit))
		if got := x.Wanted(); got != step.want {
			t.Errorf("step %d: %d, want %d", i, got, step.want)
		}
	}
}

// Decode goes by the owner that it is given, whether the index has that owner, another state of
// it, or not even the owner.
func TestDecode(t *testing.T) {
	x := attachment.NewIndex()
	at := func(path string) hold.Owner {
		r := attachment.Record{Key: attachment.Key{Network: "net", ContainerID: "a", Ifname: "eth0"}}
		r.Netns.Path = path
		return hold.Owner{ID: "0123456789abc", Meta: r.Encode()}
	}
	decoded := func(when string, o hold.Owner, path string) {
		t.Helper()
		if e := x.Decode(o); e == nil || e.Record.Netns.Path != path || e.Owner.Wanted() != o.Wanted() {
			t.Errorf("%s: %+v, want the record with %s", when, e, path)
		}
	}
	decoded("the index lacks the owner", at("/a"), "/a")
	nettest.Must(t, x.Apply(ledger.Edit{After: new(at("/a"))}))
	decoded("the index has it", at("/a"), "/a")
	decoded("the index has another record of it", at("/b"), "/b")
	going := at("/a")
	going.Releasing = going.Releasing.AddDate(2000, 0, 0)
	decoded("the index has it before its release", going, "/a")
	if e := x.Decode(hold.Owner{ID: "0123456789abc"}); e != nil {
		t.Errorf("an owner that is no attachment: %+v", e)
	}
}

// A deletion of a key that the ledger lacks means what a former CNI made for that container under that interface's name, whatever
// the network was called, and with it all that joined the same first attachment. Whatever has the key itself counts first.
func TestFormer(t *testing.T) {
	x := attachment.NewIndex()
	put := func(id, first hold.ID, network, container, ifname string, former bool) {
		r := attachment.Record{Key: attachment.Key{Network: network, ContainerID: container, Ifname: ifname}, First: first, Former: former}
		nettest.Must(t, x.Apply(ledger.Edit{After: &hold.Owner{ID: id, Meta: r.Encode()}}))
	}
	put("a0", "", "cbr0", "a", "eth0", true)
	put("a1", "a0", ":storage", "a", "net1", true)
	put("b0", "", "net", "b", "eth0", false)
	put("b1", "b0", ":storage", "b", "net1", true)
	put("c0", "", "other", "c", "eth0", false)
	for _, c := range []struct {
		network, container, ifname string
		want                       string
	}{
		{"net", "a", "eth0", "a0"},
		{"cbr0", "a", "eth0", "a0"},
		{"net", "a", "net1", "a0"},
		{"net", "a", "net2", ""},
		{"net", "b", "eth0", "b0"},
		{"net", "b", "net1", "b1"}, // Berth made the first one
		{"net", "c", "eth0", ""},
		{"net", "d", "eth0", ""},
	} {
		es, unsure := x.Called(attachment.Key{Network: c.network, ContainerID: c.container, Ifname: c.ifname})
		got := ""
		for _, e := range es {
			got += string(e.Owner.ID)
		}
		if got != c.want || unsure {
			t.Errorf("%+v: %q, %t", c, got, unsure)
		}
	}
}
