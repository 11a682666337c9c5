package stamp_test

import (
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

func TestGroups(t *testing.T) {
	for _, test := range []struct {
		instance string
		live     uint32
	}{
		{"aaaa", 1 << 30},
		{"aaabzzzzzz", 1<<30 + 1024},
		{"7777", 1<<31 - 1024},
	} {
		g, err := stamp.GroupsOf(test.instance)
		nettest.Must(t, err)
		first, last := g.Dying()
		seen := map[uint32]string{}
		for name, group := range map[string]uint32{
			"live": g.Live(), "coming": g.Coming(), "cut": g.Cut(), "batch 0": g.Batch(0), "batch 1020": g.Batch(1020),
		} {
			if seen[group] != "" {
				t.Errorf("%s: %s and %s are both %d", test.instance, name, seen[group], group)
			}
			seen[group] = name
			dying := name != "live" && name != "coming"
			if g.IsDying(group) != dying || (first <= group && group <= last) != dying {
				t.Errorf("%s: %s is dying: %t", test.instance, name, !dying)
			}
			if group < test.live || group >= test.live+1024 || group >= 1<<31 {
				t.Errorf("%s: %s is %d, not one of the 1024 from %d", test.instance, name, group, test.live)
			}
		}
		if g.Batch(1021) != g.Batch(0) || g.Batch(1<<32-1) > last {
			t.Errorf("%s: batches are not in a circle", test.instance)
		}
	}
}

func TestInstances(t *testing.T) {
	for _, bad := range []string{"", "abc", "abc1", "ABCD", "ab.d", "ab d"} {
		if g, err := stamp.GroupsOf(bad); err == nil {
			t.Errorf("%q has groups from %d", bad, g.Live())
		}
		if m, err := stamp.MetricOf(bad); err == nil {
			t.Errorf("%q has metric %d", bad, m)
		}
	}
	for _, m := range []uint32{0, 77, 1024, 1<<20 - 1, 1 << 21, 1<<32 - 1} {
		if instance, ok := stamp.OfMetric(m); ok {
			t.Errorf("metric %d is taken for that of instance %s", m, instance)
		}
	}
	metrics := map[uint32]bool{}
	for range 100 { // of about a million possible metrics
		id := string(hold.NewID())
		m, err := stamp.MetricOf(id)
		nettest.Must(t, err)
		if instance, ok := stamp.OfMetric(m); !ok || instance != id[:stamp.PrefixLen] {
			t.Errorf("metric %d, of %s, is taken for that of %q", m, id, instance)
		}
		if m < 1<<20 || m >= 1<<21 {
			t.Errorf("metric %d", m)
		}
		metrics[m] = true
	}
	if len(metrics) < 90 {
		t.Errorf("100 instances have %d metrics", len(metrics))
	}
}
