package agent

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/kernel/conntrack"
	"github.com/berth-net/berth/internal/kinds"
	"github.com/berth-net/berth/internal/nettest"
)

// filling is connection tracking that has room for 1000 entries, and has `entries` of them. Trim
// calls trimmed.
type filling struct {
	kinds.Tracked
	entries int
	trimmed func(ctx context.Context, whose map[netip.Addr]int, b conntrack.Bounds) (map[int]int, error)
}

func (f filling) Load() (entries, most int, err error) { return f.entries, 1000, nil }

func (f filling) Trim(ctx context.Context, whose map[netip.Addr]int, b conntrack.Bounds) (map[int]int, error) {
	return f.trimmed(ctx, whose, b)
}

// The agent deletes pods' entries when connection tracking is three quarters full, and not before. It
// bounds each attachment alike, and counts the entries of all of an attachment's addresses. Where the
// configuration sets no limit, the agent deletes no entry.
func TestTrim(t *testing.T) {
	for _, tt := range []struct {
		name                 string
		entries, connections int
		want                 conntrack.Bounds // zero: nobody looks
	}{
		{"room", 749, 100, conntrack.Bounds{}},
		{"nearly full", 750, 100, conntrack.Bounds{Closed: 200, All: 200, Others: true}},
		{"a small table", 1000, 800, conntrack.Bounds{Closed: 500, All: 1600, Others: true}},
		{"no limit", 1000, 0, conntrack.Bounds{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t)
			r.add(request("c", nettest.Pod(t)))
			r.add(request("d", nettest.Pod(t)))
			c := *r.ground.Config()
			c.Connections = tt.connections
			must(t, r.ground.Reload(t.Context(), &c))
			var told []string
			r.core.Observe = func(kind, op string, _ time.Duration, n int, err error) {
				if op == "trim" {
					told = append(told, kind)
				}
				if op == "trim" && (n != 3 || err != nil) {
					t.Errorf("metrics are told of %d entries, %v; want 3", n, err)
				}
			}
			var got conntrack.Bounds
			kernel := r.node.Tracked
			r.node.Tracked = filling{entries: tt.entries, trimmed: func(ctx context.Context, whose map[netip.Addr]int, b conntrack.Bounds) (map[int]int, error) {
				got = b
				of := map[int]int{}
				for _, n := range whose {
					of[n]++
				}
				if len(of) != 2 || of[0] != 2 || of[1] != 2 {
					t.Errorf("addresses are %v, want two of each attachment", whose)
				}
				if _, ends := ctx.Deadline(); !ends {
					t.Error("it may take for ever")
				}
				return map[int]int{1: 3}, nil
			}}
			gone, _, err := r.traffic.Trim(t.Context())
			r.node.Tracked = kernel
			must(t, err)
			if looks := tt.want != (conntrack.Bounds{}); got != tt.want || len(gone) > 0 != looks || len(told) > 0 != looks {
				t.Errorf("bounds are %v, gone are %v, metrics are told %v; want %v", got, gone, told, tt.want)
			}
		})
	}
}
