package ports

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/ledger"
)

func at(protocol, host string) nft.Mapping {
	return nft.Mapping{Protocol: protocol, Host: netip.MustParseAddrPort(host)}
}

// others is a node whose other agents map ports, by the names of their tables.
type others struct {
	Node
	ports map[string][]nft.Port
}

func (o others) OtherPorts() (map[string][]nft.Port, error) { return o.ports, nil }

// masquerades is the configuration of an agent whose masquerade has some ports; the zero value has
// none.
type masquerades struct{ on *bool }

func (masquerades) PoolOf(netip.Addr) string { return "" }

func (m masquerades) MasqueradePorts() (first, last uint16, on bool) {
	return 20000, 21023, m.on != nil && *m.on
}

// A port of all addresses and the same port of a single address exclude each other, in one
// protocol and one family. Ports of one owner do not exclude each other.
func TestClaim(t *testing.T) {
	for _, c := range []struct {
		has, wants nft.Mapping
		excluded   bool
	}{
		{at("tcp", "0.0.0.0:80"), at("tcp", "0.0.0.0:80"), true},
		{at("tcp", "0.0.0.0:80"), at("tcp", "192.0.2.1:80"), true},
		{at("tcp", "192.0.2.1:80"), at("tcp", "0.0.0.0:80"), true},
		{at("tcp", "[::]:80"), at("tcp", "[2001:db8::1]:80"), true},
		{at("tcp", "192.0.2.1:80"), at("tcp", "192.0.2.2:80"), false},
		{at("tcp", "0.0.0.0:80"), at("tcp", "[::]:80"), false},
		{at("tcp", "0.0.0.0:80"), at("udp", "0.0.0.0:80"), false},
		{at("tcp", "0.0.0.0:80"), at("tcp", "0.0.0.0:81"), false},
	} {
		p := New(nil, attachment.NewIndex(), masquerades{}, others{})
		free := at("sctp", "0.0.0.0:1")
		if r, _ := p.claim("first", []nft.Mapping{c.has}); r != nil {
			t.Fatalf("%s: taken by %+v", c.has, r)
		}
		r, _ := p.claim("second", []nft.Mapping{free, c.wants})
		if got := r != nil && r.owner == "first" && r.port == c.wants; got != c.excluded {
			t.Errorf("%s beside %s: taken by %+v, want excluded %v", c.wants, c.has, r, c.excluded)
		}
		if r, _ := p.claim("first", []nft.Mapping{c.wants}); (r == nil) != c.excluded {
			t.Errorf("%s and %s of one owner: taken by %+v", c.wants, c.has, r)
		}
		if r, _ := p.claim("third", []nft.Mapping{free}); (r == nil) != c.excluded {
			t.Errorf("what was claimed with %s is %+v's", c.wants, r)
		}
	}
}

// The view follows the ledger: a port is free once its owner is forgotten, and not before.
func TestFollow(t *testing.T) {
	p := New(nil, attachment.NewIndex(), masquerades{}, others{})
	m := at("tcp", "[2001:db8::1]:80")
	o := hold.Owner{ID: "first", Names: []hold.Name{hostports.Name(m), {Space: "address", Name: "10.88.0.7"}}}
	releasing, fewer := o.Clone(), o.Clone()
	fewer.Names = fewer.Names[1:]
	steps := []struct {
		change ledger.Edit
		has    bool
	}{
		{ledger.Edit{After: &o}, true},
		{ledger.Edit{Before: &o, After: &releasing}, true},
		{ledger.Edit{Before: &releasing, After: &fewer}, false},
		{ledger.Edit{Before: &fewer, After: &o}, true},
		{ledger.Edit{Before: &o}, false},
	}
	for i, s := range steps {
		p.Follow(ledger.Change{Owners: []ledger.Edit{s.change}})
		if got := p.Has("tcp", m.Host); got != s.has {
			t.Errorf("after step %d: %v, want %v", i, got, s.has)
		}
	}
	if len(p.has)+len(p.adding) > 0 {
		t.Errorf("left: %v, %v", p.has, p.adding)
	}
	p.Restore([]hold.Owner{o})
	if r, _ := p.claim("second", []nft.Mapping{m}); r == nil || r.owner != "first" {
		t.Errorf("restored, it is %+v's", r)
	}
	if got := names(o); !slices.Equal(got, []nft.Mapping{m}) {
		t.Errorf("names %v", got)
	}
}

// The cost of a commit for the ledger's writer does not grow with the number of an owner's ports
// if the ports stay, and not with the square of that number if they change.
func TestFollowIsCheap(t *testing.T) {
	const many = 512
	p := New(nil, attachment.NewIndex(), masquerades{}, others{})
	o := hold.Owner{ID: "first"}
	for i := range many {
		o.Names = append(o.Names, hostports.Name(at("tcp", fmt.Sprint("0.0.0.0:", 1024+i))))
	}
	p.Restore([]hold.Owner{o})
	releasing, fewer := o.Clone(), o.Clone()
	fewer.Names = fewer.Names[1:]
	for _, tt := range []struct {
		what string
		most float64
		edit []ledger.Edit
	}{
		{"stay", 0, []ledger.Edit{{Before: &o, After: &releasing}}},
		{"change", 20 * many, []ledger.Edit{{Before: &o, After: &fewer}, {Before: &fewer, After: &o}}},
	} {
		if n := testing.AllocsPerRun(3, func() { p.Follow(ledger.Change{Owners: tt.edit}) }); n > tt.most {
			t.Errorf("%d ports that %s take %v allocations, want %v", many, tt.what, n, tt.most)
		}
	}
}

// Host ports have no more than a quarter of masquerade's ports, in each protocol and family: a pod
// that asks for more gets none. Ports outside masquerade's range have no such bound, and a port of two
// addresses counts once.
func TestClaimLeavesMasquerade(t *testing.T) {
	on := true
	p := New(nil, attachment.NewIndex(), masquerades{&on}, others{})
	ports := func(protocol, host string, first, last int) (ms []nft.Mapping) {
		for i := first; i <= last; i++ {
			ms = append(ms, at(protocol, fmt.Sprint(host, ":", i)))
		}
		return ms
	}
	for i, tt := range []struct {
		want    []nft.Mapping
		refused bool
	}{
		{ports("tcp", "0.0.0.0", 20000, 20256), true},
		{ports("tcp", "192.0.2.1", 20000, 20255), false},
		{ports("tcp", "192.0.2.2", 20000, 20255), false},
		{ports("tcp", "0.0.0.0", 21023, 21023), true},
		{ports("tcp", "0.0.0.0", 21024, 21500), false},
		{ports("tcp", "0.0.0.0", 19000, 19999), false},
		{ports("udp", "0.0.0.0", 20000, 20255), false},
		{ports("tcp", "[::]", 20000, 20255), false},
	} {
		_, err := p.Claim(t.Context(), hold.ID(fmt.Sprint("pod", i)), tt.want)
		var e *api.Error
		if refused := errors.As(err, &e) && e.Code == cni.CodeTaken; refused != tt.refused || !refused && err != nil {
			t.Errorf("claim %d: %v, want refused %v", i, err, tt.refused)
		}
	}
	on = false
	if _, err := p.Claim(t.Context(), "last", ports("tcp", "0.0.0.0", 21023, 21023)); err != nil {
		t.Errorf("without masquerade: %v", err)
	}
}
