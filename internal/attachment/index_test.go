package attachment_test

import (
	"testing"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
)

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
