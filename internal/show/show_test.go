package show_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/show"
)

// The API has a word for each type of event and of finding that the engine has.
func TestWords(t *testing.T) {
	for _, e := range []engine.EventType{
		engine.Attaching, engine.Attached, engine.Releasing, engine.Released, engine.Owing, engine.Drifted, engine.Mended, engine.Ended,
	} {
		if !slices.Contains(api.EventTypes(), string(e)) {
			t.Errorf("the API has no event %q", e)
		}
	}
	for _, f := range engine.FindingTypes() {
		if !slices.Contains(api.FindingTypes(), string(f)) {
			t.Errorf("the API has no finding %q", f)
		}
	}
}

func TestLedger(t *testing.T) {
	at := time.Unix(1, 0)
	v := show.Ledger(ledger.Snapshot{
		Owners:     []hold.Owner{{ID: "aaaaaaaaaa"}, {ID: "bbbbbbbbbb"}},
		Resting:    []ledger.Rest{{Name: hold.Name{Space: "address", Name: "10.0.0.2"}, Freed: at, Until: at}},
		Tombstones: []ledger.Tombstone{{Key: "n/c/eth0"}},
	})
	if len(v.Owners) != 2 || len(v.Resting) != 1 || v.Resting[0].Name != "10.0.0.2" || len(v.Tombstones) != 1 {
		t.Errorf("%+v", v)
	}
	if v := show.Ledger(ledger.Snapshot{}); v.Owners == nil || v.Resting == nil || v.Tombstones == nil {
		t.Errorf("an empty ledger has no lists: %+v", v)
	}
}

func TestPools(t *testing.T) {
	v := show.Pools([]ipam.Figures{{Pool: "default", Default: true, CIDRs: []ipam.CIDRFigures{
		{CIDR: netip.MustParsePrefix("fd00::/64"), Size: 1<<64 - 1, Used: 2, Resting: 1},
	}}, {Pool: "gone"}})
	if c := v[0].CIDRs[0]; c.CIDR != "fd00::/64" || c.Size != "18446744073709551615" || c.Used != 2 || c.Resting != 1 {
		t.Errorf("%+v", v)
	}
	if v[1].CIDRs == nil {
		t.Error("a pool without CIDRs has no list")
	}
}
