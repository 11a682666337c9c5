package ports

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// busy is a node on which another program keeps nftables busy until `ends` is closed.
type busy struct {
	Node
	ends chan struct{}
}

func (b busy) OtherPorts() (map[string][]nft.Port, error) {
	<-b.ends
	return nil, nil
}

// left is a node with another agent's table. Nobody can tell whether that agent's pods are gone until lost is nil.
type left struct {
	others
	lost     error
	unmapped []nft.Port
}

func (l *left) LinksOf(string) ([]rtnl.Link, error) { return nil, l.lost }

func (l *left) UnmapOther(_ string, gone []nft.Port, _ bool) error {
	l.unmapped, l.ports = append(l.unmapped, gone...), nil
	return nil
}

// owning is the configuration of an agent that has all addresses.
type owning struct{ masquerades }

func (owning) PoolOf(netip.Addr) string { return "default" }

// Another agent's host port leads to an address of this agent's pools. No pod gets the address before the port is removed,
// which needs no sweep, and flows by the port are forgotten.
func TestTheirs(t *testing.T) {
	led := nft.Mapping{Protocol: "udp", Host: netip.MustParseAddrPort("0.0.0.0:80"), Pod: netip.MustParseAddrPort("10.88.0.7:80")}
	n := &left{lost: errors.New("nobody can tell")}
	n.ports = map[string][]nft.Port{stamp.Table("aaaaaaaaaa"): {{Owner: "bbbbbbbbbb", Mapping: led}}}
	d := &daemon.Core{}
	d.Log = slog.New(slog.DiscardHandler)
	p := New(d, attachment.NewIndex(), owning{}, n)
	var astray []nft.Mapping
	p.Astray = func(ms []nft.Mapping) { astray = append(astray, ms...) }
	if p.ClearLeft() == nil {
		t.Error("ClearLeft says that nothing is left")
	}
	its, other := led.Pod.Addr(), netip.MustParseAddr("10.88.0.8")
	if got := p.Theirs([]netip.Addr{its, other}); !slices.Equal(got, []netip.Addr{its}) || len(n.unmapped) > 0 {
		t.Errorf("theirs are %v", got)
	}
	n.lost = nil
	if got := p.Theirs([]netip.Addr{its, other}); len(got) > 0 || len(n.unmapped) != 1 || !slices.Equal(astray, []nft.Mapping{led}) {
		t.Errorf("theirs are %v; unmapped %v, and led astray %v", got, n.unmapped, astray)
	}
}

// What other agents have left holds up neither a start nor a sweep for longer than anything else that hangs.
func TestClearLeftWhileNftablesIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := busy{ends: make(chan struct{})}
		p := New(nil, attachment.NewIndex(), masquerades{}, b)
		began := time.Now()
		for range 2 {
			if err := p.ClearLeft(); err == nil {
				t.Error("ClearLeft says that nothing is left")
			}
		}
		if took := time.Since(began); took > leftLimit {
			t.Errorf("it took %s", took)
		}
		close(b.ends)
		synctest.Wait()
		time.Sleep(time.Minute)
		if err := p.ClearLeft(); err != nil {
			t.Error(err)
		}
	})
}
