package nft

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/berth-net/berth/internal/nettest"
)

// Two pods behind one bridge have mappings: what one of them gives back leaves those of the other whole. A mapping that is closed keeps its
// port until it is unmapped: the table of family bridge goes on to judge the frames that are under way.
func TestBridgedPorts(t *testing.T) {
	at := nettest.Node(t)
	tables := Open(at)
	r := sample()
	r.Ports = nil
	must(t, tables.Replace(r))
	first := []Port{behind("tcp", "0.0.0.0:8080", "10.2.0.2:80", 7, 8), behind("tcp", "[::]:8080", "[fd00:2::2]:80", 7, 8), behind("udp", "0.0.0.0:8080", "10.2.0.2:80", 7, 8)}
	second := []Port{behind("tcp", "0.0.0.0:9090", "10.2.0.3:80", 7, 9)}
	for i := range second {
		second[i].Owner = "another222"
	}
	want := func(ports ...Port) {
		t.Helper()
		slices.SortFunc(ports, Port.compare)
		got, err := tables.Mapped(r.Instance)
		if err != nil || !slices.Equal(got, ports) {
			t.Errorf("mapped are %v, %v, want %v", got, err, ports)
		}
		r.Ports = ports
		wantWhole(t, tables, r)
	}
	must(t, tables.Map(r.Instance, first))
	must(t, tables.Map(r.Instance, second))
	want(slices.Concat(first, second)...)
	must(t, tables.Close(r.Instance, first))
	closed := slices.Clone(first)
	for i := range closed {
		closed[i].Via = NoLink
	}
	want(slices.Concat(closed, second)...)
	must(t, tables.Unmap(r.Instance, first))
	want(second...)
	must(t, tables.Unmap(r.Instance, slices.Concat(first, second)))
	want()
}

// Whatever somebody does to the table of family bridge is a difference, of which a Watch hears, and Replace mends it. Delete and Holder
// know the table also where it is alone.
func TestBridgeTableChanged(t *testing.T) {
	bridge := &nftables.Table{Name: sample().Table(), Family: nftables.TableFamilyBridge}
	inet := &nftables.Table{Name: sample().Table(), Family: nftables.TableFamilyINet}
	out := &nftables.Chain{Name: "ports_out", Table: bridge}
	ports := &nftables.Set{Name: "bridgeports4", Table: bridge}
	for _, tt := range []struct {
		want string
		edit func(*nftables.Conn)
	}{
		{"the table of family bridge is missing", func(c *nftables.Conn) { c.DelTable(bridge) }},
		{"in the table of family bridge, chain ports_out lacks the rule", func(c *nftables.Conn) { c.FlushChain(out) }},
		{"in the table of family bridge, set bridgeports4 lacks 10.99.2.7 . 8", func(c *nftables.Conn) { c.FlushSet(ports) }},
	} {
		t.Run(tt.want, func(t *testing.T) {
			at := nettest.Node(t)
			tables := Open(at)
			must(t, tables.Replace(sample()))
			w, err := tables.Watch(sample().Instance)
			must(t, err)
			defer w.Close()
			edit(t, at, tt.edit)
			ctx, cancel := context.WithTimeout(t.Context(), nettest.Deadline)
			defer cancel()
			if news, err := w.Next(ctx); err != nil || news.Gone || !news.Others {
				t.Errorf("the news are %+v, %v", news, err)
			}
			if _, err := tables.Verify(sample()); !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want ErrChanged: %s", err, tt.want)
			}
			must(t, tables.Replace(sample()))
			wantWhole(t, tables, sample())
		})
	}
	t.Run("alone", func(t *testing.T) {
		at := nettest.Node(t)
		tables := Open(at)
		must(t, tables.Replace(sample()))
		edit(t, at, func(c *nftables.Conn) { c.DelTable(inet) })
		if owner, there, err := tables.Holder(sample().Instance); owner != sample().Owner || !there || err != nil {
			t.Errorf("its holder is %q, %v, %v", owner, there, err)
		}
		if _, err := tables.Verify(sample()); !errors.Is(err, ErrGone) {
			t.Errorf("%v, want ErrGone", err)
		}
		must(t, tables.Delete(sample().Instance))
		if _, there, err := tables.Holder(sample().Instance); there || err != nil {
			t.Errorf("after it is deleted: there %v, %v", there, err)
		}
	})
	t.Run("another's", func(t *testing.T) {
		at := nettest.Node(t)
		tables := Open(at)
		other := sample()
		other.Instance = "jihgfedcba"
		w, err := tables.Watch(sample().Instance)
		must(t, err)
		defer w.Close()
		must(t, tables.Replace(other))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if news, err := w.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the news are %+v, %v", news, err)
		}
	})
}

// A kernel without tables of family bridge leads nothing to pods behind bridges: the mappings are closed.
func TestLacksBridges(t *testing.T) {
	tables := Open(nettest.Node(t))
	lacking(tables, noBridges)
	r := sample()
	must(t, tables.Replace(r))
	ports, err := tables.Mapped(r.Instance)
	must(t, err)
	for _, p := range ports {
		want := 0
		for _, o := range r.Ports {
			if o.SamePort(p.Mapping) {
				want = o.Via
				if o.BridgePort != 0 {
					want = NoLink
				}
			}
		}
		if p.Via != want {
			t.Errorf("%s leads by %d, want %d", p, p.Via, want)
		}
	}
	if len(ports) != len(r.Ports) {
		t.Errorf("%d mappings, want %d", len(ports), len(r.Ports))
	}
}
