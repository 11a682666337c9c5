package table

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/nftables"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

func withPorts() nft.Ruleset {
	r := ruleset()
	r.Live, r.HostPorts = 1<<30, true
	return r
}

func mapping(host string, pod string) nft.Mapping {
	return nft.Mapping{Protocol: "tcp", Host: netip.MustParseAddrPort(host), Pod: netip.MustParseAddrPort(pod)}
}

// Keeper's own changes of host ports raise no doubt about the table. All host ports outlive a
// new ruleset, and changes of others to the table.
func TestPortsOutliveChanges(t *testing.T) {
	at := nettest.Node(t)
	e := New(Options{
		Tables: nft.Open(at), Ruleset: withPorts(),
		Differs: func() { t.Log("the table differs") },
	})
	drifts := make(chan error, 100)
	run(t, e, drifts)
	k, h := kind{t, e.Kind()}, newHold(instance)
	k.must(k.acquire(h))
	nettest.Eventually(t, "the table to be intact", e.Intact)

	doubted := false
	stop := nettest.Again(func() { doubted = doubted || !e.Intact() })
	defer stop()
	want := map[hold.ID][]nft.Mapping{}
	for i := range 50 {
		owner := hold.NewID()
		ports := []nft.Mapping{mapping(fmt.Sprintf("0.0.0.0:%d", 1000+i), fmt.Sprintf("10.88.0.%d:80", i+1))}
		k.must(e.Map(owner, ports))
		if i%2 == 0 {
			k.must(e.Unmap([]hold.ID{owner}))
		} else {
			want[owner] = ports
		}
	}
	nettest.Eventually(t, "all news to be read", func() bool { return upToDate(k, e) })
	if stop(); doubted {
		t.Error("the table was not intact while ports were mapped")
	}
	if len(drifts) > 0 {
		t.Errorf("Run sees a drift in Keeper's own changes: %v", <-drifts)
	}

	whole := func(after string) {
		t.Helper()
		have, err := e.Mapped()
		if err != nil || !same(have, want) {
			t.Errorf("after %s: %v, %v, want %v", after, have, err, want)
		}
		if err := k.verify(h); err != nil {
			t.Errorf("after %s: %v", after, err)
		}
	}
	whole("the changes")
	r := withPorts()
	r.Connections, r.Pools = 100, append(r.Pools, netip.MustParsePrefix("10.89.0.0/16"))
	k.must(e.SetRuleset(r))
	whole("a new ruleset")
	table := &nftables.Table{Name: stamp.Table(instance), Family: nftables.TableFamilyINet}
	for what, do := range map[string]func(*nftables.Conn){
		"nft flush ruleset":                (*nftables.Conn).FlushRuleset,
		"nft flush map":                    func(c *nftables.Conn) { c.FlushSet(&nftables.Set{Name: "anyports4", Table: table}) },
		"the loss of a set of what is due": func(c *nftables.Conn) { c.FlushSet(&nftables.Set{Name: "hairpin4", Table: table}) },
	} {
		change(t, at, do)
		<-drifts
		nettest.Eventually(t, "the table to be intact", e.Intact)
		whole(what)
	}
}

func same(a, b map[hold.ID][]nft.Mapping) bool {
	return maps.EqualFunc(a, b, slices.Equal[[]nft.Mapping])
}

// A starting agent keeps the host ports that a former agent has left in the table, except ports
// that the ledger lacks: those of unknown owners, and those that somebody has written meanwhile.
func TestPortsOfAFormerAgent(t *testing.T) {
	at := nettest.Node(t)
	h := newHold(instance)
	before := New(Options{Tables: nft.Open(at), Ruleset: withPorts()})
	k := kind{t, before.Kind()}
	k.must(k.acquire(h))
	known, unknown := mapping("0.0.0.0:1000", "10.88.0.1:80"), mapping("[::]:1000", "[fd88::1]:80")
	k.must(before.Map("known22222", []nft.Mapping{known}))
	k.must(before.Map("unknown222", []nft.Mapping{unknown}))
	k.must(before.Map("tampered22", []nft.Mapping{mapping("0.0.0.0:1001", "10.88.0.66:80"), mapping("0.0.0.0:1002", "10.88.0.2:80")}))

	var astray []nft.Mapping
	now := New(Options{Tables: nft.Open(at), Ruleset: withPorts(), Kept: func(id hold.ID, _ []nft.Mapping) []nft.Mapping {
		return map[hold.ID][]nft.Mapping{
			"known22222": {known}, "tampered22": {mapping("0.0.0.0:1002", "10.88.0.2:80")},
		}[id]
	}, Astray: func(ms []nft.Mapping) { astray = append(astray, ms...) }})
	k = kind{t, now.Kind()}
	k.is(k.verify(h), hold.ErrChanged)
	wantAstray := func(when string, want ...nft.Mapping) {
		t.Helper()
		got := slices.Compact(slices.SortedFunc(slices.Values(astray), nft.Mapping.Compare))
		if slices.SortFunc(want, nft.Mapping.Compare); !slices.Equal(got, want) {
			t.Errorf("%s: astray are %v, not %v", when, got, want)
		}
	}
	wantAstray("at the start", unknown, mapping("0.0.0.0:1001", "10.88.0.66:80"))
	k.must(k.acquire(h))
	k.must(k.verify(h))
	if have, err := now.Mapped(); err != nil || !same(have, map[hold.ID][]nft.Mapping{
		"known22222": {known}, "tampered22": {mapping("0.0.0.0:1002", "10.88.0.2:80")},
	}) {
		t.Errorf("%v, %v", have, err)
	}
	whole := []nft.Mapping{mapping("0.0.0.0:1001", "10.88.0.2:80"), mapping("0.0.0.0:1002", "10.88.0.2:80")}
	k.must(now.Map("tampered22", whole))
	if have, err := now.Mapped(); err != nil || !slices.Equal(have["tampered22"], whole) {
		t.Errorf("%v, %v", have, err)
	}
	astray = nil
	k.must(before.Map("unknown222", []nft.Mapping{unknown})) // as by a ruleset that somebody saved before
	k.is(k.verify(h), hold.ErrChanged)
	wantAstray("in an older table", unknown)
}

// Two owners cannot have the same port, and neither owner loses the ports that it has.
func TestPortsOfTwo(t *testing.T) {
	e := New(Options{Tables: nft.Open(nettest.Node(t)), Ruleset: withPorts()})
	k := kind{t, e.Kind()}
	k.must(k.acquire(newHold(instance)))
	m := mapping("0.0.0.0:1000", "10.88.0.1:80")
	k.must(e.Map("first22222", []nft.Mapping{m}))
	other := m
	other.Pod = netip.MustParseAddrPort("10.88.0.2:80")
	if err := e.Map("second2222", []nft.Mapping{mapping("0.0.0.0:999", "10.88.0.2:80"), other}); !errors.Is(err, hold.ErrForeign) {
		t.Errorf("the second gets the first's port: %v", err)
	}
	k.must(e.Unmap([]hold.ID{"second2222"}))
	if have, err := e.Mapped(); err != nil || !same(have, map[hold.ID][]nft.Mapping{"first22222": {m}}) {
		t.Errorf("%v, %v", have, err)
	}
}

// deafTables are tables whose answers get lost, once.
type deafTables struct {
	*nft.Tables
	deaf int   // how many calls from now on get no answer
	err  error // the error of these calls; nil: errDeaf
}

var errDeaf = errors.New("no buffer space available")

func (d *deafTables) Map(instance string, ports []nft.Port) error {
	return errors.Join(d.Tables.Map(instance, ports), d.answer())
}

func (d *deafTables) Unmap(instance string, ports []nft.Port) error {
	return errors.Join(d.Tables.Unmap(instance, ports), d.answer())
}

func (d *deafTables) answer() error {
	if d.deaf--; d.deaf >= 0 {
		return cmp.Or(d.err, errDeaf)
	}
	return nil
}

// The kernel has mapped ports, or unmapped them, and its answer gets lost. No port is left once the
// agent has released the owner, and Keeper's list agrees with the table.
func TestPortsWithoutAnAnswer(t *testing.T) {
	for deaf := range 4 {
		tables := &deafTables{Tables: nft.Open(nettest.Node(t))}
		e := New(Options{Tables: tables.Tables, Ruleset: withPorts()})
		e.tables = tables
		k, h := kind{t, e.Kind()}, newHold(instance)
		k.must(k.acquire(h))
		tables.deaf = deaf
		m := mapping("0.0.0.0:1000", "10.88.0.1:80")
		if err := e.Map("first22222", []nft.Mapping{m}); deaf > 0 != errors.Is(err, errDeaf) {
			t.Errorf("%d answers lost: Map says %v", deaf, err)
		}
		for e.Unmap([]hold.ID{"first22222"}) != nil {
		}
		if have, err := e.Mapped(); err != nil || len(have) > 0 {
			t.Errorf("%d answers lost: left %v, %v", deaf, have, err)
		}
		k.must(k.verify(h))
		k.must(e.Map("second2222", []nft.Mapping{m}))
		k.must(k.verify(h))
	}
}

// The kernel has mapped ports, and an error of the socket looks as if the kernel had refused them.
// The ports are in the table, and Keeper does not take them for another owner's.
func TestPortsBusyAnswer(t *testing.T) {
	tables := &deafTables{Tables: nft.Open(nettest.Node(t)), err: kernel.ErrBusy}
	e := New(Options{Tables: tables.Tables, Ruleset: withPorts()})
	e.tables = tables
	k, h := kind{t, e.Kind()}, newHold(instance)
	k.must(k.acquire(h))
	tables.deaf = 1
	m := mapping("0.0.0.0:1000", "10.88.0.1:80")
	k.must(e.Map("first22222", []nft.Mapping{m}))
	k.must(k.verify(h))
	k.must(e.Unmap([]hold.ID{"first22222"}))
	k.must(k.verify(h))
	if have, err := e.Mapped(); err != nil || len(have) > 0 {
		t.Errorf("left %v, %v", have, err)
	}
}

// Ports of pods behind bridges are refused where the kernel lacks what guards them, and others are not.
func TestPortsWithoutBridges(t *testing.T) {
	e := New(Options{Tables: nft.Open(nettest.Node(t)), Ruleset: withPorts()})
	k, h := kind{t, e.Kind()}, newHold(instance)
	k.must(k.acquire(h))
	m := mapping("0.0.0.0:1000", "10.88.0.1:80")
	m.Via, m.BridgePort = 7, 8
	e.tables = &poor{tables: e.tables, lacks: nft.Bridges}
	k.is(e.Map("first22222", []nft.Mapping{m}), kernel.ErrUnsupported)
	m.BridgePort = 0
	k.must(e.Map("first22222", []nft.Mapping{m}))
}

// Somebody takes the table of family bridge away, and Keeper puts it back with the ports.
func TestBridgeTableMended(t *testing.T) {
	at := nettest.Node(t)
	e := New(Options{Tables: nft.Open(at), Ruleset: withPorts()})
	k, h := kind{t, e.Kind()}, newHold(instance)
	k.must(k.acquire(h))
	m := mapping("0.0.0.0:1000", "10.88.0.1:80")
	m.Via, m.BridgePort = 7, 8
	k.must(e.Map("first22222", []nft.Mapping{m}))
	before := nettest.Snapshot(t, at)
	change(t, at, func(c *nftables.Conn) {
		c.DelTable(&nftables.Table{Name: stamp.Table(instance), Family: nftables.TableFamilyBridge})
	})
	k.is(k.verify(h), hold.ErrChanged)
	k.must(k.acquire(h))
	nettest.Same(t, before, nettest.Snapshot(t, at), "after the table is mended")
	k.must(k.release(h))
	if got := nettest.Snapshot(t, at).Only("nft").String(); got != "" {
		t.Errorf("left after the release:\n%s", got)
	}
}

// An agent sees the host ports of the node's other agents, and neither its own nor host ports that
// nobody has.
func TestPortsOfOthers(t *testing.T) {
	at := nettest.Node(t)
	mine, r := New(Options{Tables: nft.Open(at), Ruleset: withPorts()}), withPorts()
	none, err := mine.Others()
	if err != nil || len(none) > 0 {
		t.Errorf("before there is a table: %v, %v", none, err)
	}
	r.Instance = "zzzz" + instance[4:]
	theirs := New(Options{Tables: nft.Open(at), Ruleset: r})
	change(t, at, func(c *nftables.Conn) { c.AddTable(&nftables.Table{Name: "berthed", Family: nftables.TableFamilyINet}) })
	port := mapping("0.0.0.0:1000", "10.88.0.1:80")
	for i, e := range []*Keeper{mine, theirs} {
		k := kind{t, e.Kind()}
		k.must(k.acquire(newHold(e.want.Instance)))
		port.Host = netip.AddrPortFrom(port.Host.Addr(), uint16(1000+i))
		k.must(e.Map("owner22222", []nft.Mapping{port}))
	}
	got, err := mine.Others()
	want := map[string][]nft.Port{stamp.Table(r.Instance): {{Owner: "owner22222", Mapping: port}}}
	if err != nil || len(got) != 1 || !slices.Equal(got[stamp.Table(r.Instance)], want[stamp.Table(r.Instance)]) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}

// countedTables counts how often Keeper reads all elements of the table.
type countedTables struct {
	*nft.Tables
	reads int
}

func (c *countedTables) Verify(r nft.Ruleset) (nft.Generation, error) {
	c.reads++
	return c.Tables.Verify(r)
}

func (c *countedTables) Mapped(instance string) ([]nft.Port, error) {
	c.reads++
	return c.Tables.Mapped(instance)
}

// Keeper reads the table again only if something has changed in nftables since Keeper saw that the
// table is right, or if an answer got lost. Keeper sees every change of others.
func TestPortsAreReadOnce(t *testing.T) {
	at := nettest.Node(t)
	deaf := &deafTables{Tables: nft.Open(at)}
	tables := &countedTables{Tables: deaf.Tables}
	e := New(Options{Tables: tables.Tables, Ruleset: withPorts()})
	e.tables = struct {
		*countedTables
		unmapper
	}{tables, deaf}
	k, h := kind{t, e.Kind()}, newHold(instance)
	k.must(k.acquire(h))
	first, second := mapping("0.0.0.0:1001", "10.88.0.1:80"), mapping("0.0.0.0:1000", "10.88.0.1:80")
	k.must(e.Map("first22222", []nft.Mapping{first, second}))
	k.must(k.verify(h))
	mapped := func(reads int, want ...nft.Mapping) {
		t.Helper()
		tables.reads = 0
		have, err := e.Mapped()
		if err != nil || !slices.Equal(have["first22222"], want) || tables.reads != reads {
			t.Errorf("%v, %v, read %d times; want %v, read %d times", have, err, tables.reads, want, reads)
		}
	}
	mapped(0, second, first)
	k.must(k.verify(h))
	mapped(0, second, first)
	k.must(tables.Unmap(instance, []nft.Port{{Owner: "first22222", Mapping: first}}))
	mapped(1, second)
	k.is(k.verify(h), hold.ErrChanged)
	mapped(1, second)
	k.must(k.acquire(h))
	mapped(0, second, first)
	deaf.deaf = 1
	k.is(e.Unmap([]hold.ID{"first22222"}), errDeaf)
	now, err := tables.Generation()
	k.must(err)
	e.sound.Store(uint32(now)) // as Run does when it hears of Keeper's own transaction
	mapped(1)
	k.is(k.verify(h), hold.ErrChanged)
}

// unmapper is one call of the tables.
type unmapper interface {
	Unmap(instance string, ports []nft.Port) error
}
