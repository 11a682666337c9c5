package hostports_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/nftables"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/kinds/table"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

const instance = "instance22"

// open takes the table of a fresh node, and returns the kind of the ports in it.
func open(t *testing.T) (k hold.Kind, exposed *[]nft.Mapping, tables *nft.Tables) {
	t.Helper()
	tables = nft.Open(nettest.Node(t))
	keeper := table.New(table.Options{Tables: tables, Ruleset: nft.Ruleset{
		Instance: instance, CutLow: 1<<30 + 2, CutHigh: 1<<30 + 1023, Live: 1 << 30, HostPorts: true,
	}})
	must(t, keeper.Kind().Acquire(t.Context(), hold.Hold{Owner: hold.NewID(), Spec: &table.Spec{Instance: instance}}))
	exposed = new([]nft.Mapping)
	return hostports.New(hostports.Options{
		Maps: keeper, Exposed: func(ms []nft.Mapping) { *exposed = append(*exposed, ms...) },
		Link: func(id hold.ID) string { return stamp.Link(instance, id) },
	}).Kind(), exposed, tables
}

func mapping(protocol, host, pod string) nft.Mapping {
	return nft.Mapping{Protocol: protocol, Host: netip.MustParseAddrPort(host), Pod: netip.MustParseAddrPort(pod)}
}

// bound is a mapping to a pod behind a link that has an index.
func bound(protocol, host, pod string, index int) nft.Mapping {
	m := mapping(protocol, host, pod)
	m.Via = index
	return m
}

// What Find returns of a pod whose link is another plugin's has the name of the ledger's hold: a sweep would take it for nobody's.
func TestFoundByTheSameName(t *testing.T) {
	k, _, _ := open(t)
	h := hold.Hold{Owner: hold.NewID(), Spec: &hostports.Spec{Mappings: []nft.Mapping{
		bound("tcp", "0.0.0.0:8080", "10.2.0.2:80", 7), bound("tcp", "[::]:8080", "[fd00:2::2]:80", 7)}}}
	must(t, k.Acquire(t.Context(), h))
	found, err := k.Find(t.Context(), nil)
	if err != nil || len(found) != 1 || found[0].Spec.String() != h.Spec.String() || h.Spec.String() != "host ports of 10.2.0.2" {
		t.Errorf("found %v, %v, want %v", found, err, h)
	}
}

// behind is a mapping to a pod behind a bridge and its port.
func behind(protocol, host, pod string, bridge, port int) nft.Mapping {
	m := bound(protocol, host, pod, bridge)
	m.BridgePort = port
	return m
}

func TestKind(t *testing.T) {
	k, _, tables := open(t)
	var last atomic.Int32
	kindtest.Run(t, kindtest.Kind{
		Kind: k,
		Spec: func(_ testing.TB, owner hold.ID) hold.Spec {
			n := last.Add(1)
			return &hostports.Spec{Link: stamp.Link(instance, owner), Mappings: []nft.Mapping{
				mapping("sctp", fmt.Sprintf("0.0.0.0:%d", 1000+n), fmt.Sprintf("10.88.0.%d:80", n)),
				mapping("tcp", fmt.Sprintf("192.0.2.1:%d", 1000+n), fmt.Sprintf("10.88.0.%d:80", n)),
				mapping("udp", fmt.Sprintf("[2001:db8::1]:%d", 1000+n), fmt.Sprintf("[fd88::%d]:80", n)),
				bound("udp", fmt.Sprintf("[::]:%d", 3000+n), fmt.Sprintf("[fd99::%d]:80", n), int(n)),
				behind("tcp", fmt.Sprintf("[::]:%d", 4000+n), fmt.Sprintf("[fd99:1::%d]:80", n), 7, 1000+int(n)),
			}}
		},
		Example: &hostports.Spec{Link: "babcd0123456789", Mappings: []nft.Mapping{behind("tcp", "0.0.0.0:8080", "10.88.0.7:80", 7, 8)}},
		Snapshot: func() string {
			ports, err := tables.Mapped(instance)
			return fmt.Sprint(ports, err)
		},
		Disguise: func(t testing.TB, h hold.Hold) {
			must(t, tables.Unmap(instance, []nft.Port{{Owner: string(h.Owner), Mapping: h.Spec.(*hostports.Spec).Mappings[1]}}))
		},
		Foreign: func(t testing.TB, h hold.Hold) func() error {
			m := h.Spec.(*hostports.Spec).Mappings[0]
			m.Pod = netip.MustParseAddrPort("10.99.0.1:1")
			foreign := nft.Port{Owner: "foreigner2", Mapping: m}
			must(t, tables.Map(instance, []nft.Port{foreign}))
			return func() error {
				if there, err := tables.Mapped(instance); err != nil || !slices.Contains(there, foreign) {
					return fmt.Errorf("it is gone: %v, %v", there, err)
				}
				return nil
			}
		},
	})
}

// Verify says what others have done to a pod's ports, and Acquire puts them right.
func TestVerify(t *testing.T) {
	k, _, tables := open(t)
	a, b := mapping("tcp", "0.0.0.0:1000", "10.88.0.7:80"), mapping("tcp", "[::]:1000", "[fd88::7]:80")
	owner := hold.NewID()
	h := hold.Hold{Owner: owner, Spec: &hostports.Spec{Link: "x", Mappings: []nft.Mapping{a, b}}}
	must(t, k.Acquire(t.Context(), h))
	must(t, tables.Unmap(instance, []nft.Port{{Owner: string(owner), Mapping: b}}))
	err := k.Verify(t.Context(), nil, []hold.Hold{h})[0]
	if got := hold.Differences(err); !errors.Is(err, hold.ErrChanged) || !slices.Equal(got, []string{"does not map " + b.String()}) {
		t.Errorf("with one port gone: %v", err)
	}
	must(t, k.Acquire(t.Context(), h))
	must(t, k.Verify(t.Context(), nil, []hold.Hold{h})[0])
}

// A client that sends datagrams to a port before the port is mapped has a flow to the node
// itself; a TCP client has no such flow.
func TestExposed(t *testing.T) {
	k, exposed, _ := open(t)
	var all []nft.Mapping
	for _, protocol := range []string{"tcp", "udp", "sctp"} {
		all = append(all, mapping(protocol, "0.0.0.0:1000", "10.88.0.7:80"))
	}
	must(t, k.Acquire(t.Context(), hold.Hold{Owner: hold.NewID(), Spec: &hostports.Spec{Link: "x", Mappings: all}}))
	if !slices.Equal(*exposed, all[1:]) {
		t.Errorf("of %v these are said to be exposed: %v", all, *exposed)
	}
}

// If somebody has taken the table away, Acquire puts it back, with the ports of all pods.
func TestAcquireWithoutTable(t *testing.T) {
	at := nettest.Node(t)
	tables := nft.Open(at)
	rules := nft.Ruleset{Instance: instance, CutLow: 1<<30 + 2, CutHigh: 1<<30 + 1023, Live: 1 << 30, HostPorts: true}
	keeper := table.New(table.Options{Tables: tables, Ruleset: rules})
	owner := hold.NewID()
	must(t, keeper.Kind().Acquire(t.Context(), hold.Hold{Owner: owner, Spec: &table.Spec{Instance: instance}}))
	first, second := mapping("tcp", "0.0.0.0:1000", "10.88.0.7:80"), mapping("tcp", "0.0.0.0:1001", "10.88.0.8:80")
	must(t, keeper.Map("first22222", []nft.Mapping{first}))
	c, err := nftables.New(nftables.WithNetNSFd(at.Fd()))
	must(t, err)
	c.FlushRuleset()
	must(t, c.Flush())
	must(t, keeper.Map("second2222", []nft.Mapping{second}))
	rules.Owner = string(owner)
	rules.Ports = []nft.Port{{Owner: "first22222", Mapping: first}, {Owner: "second2222", Mapping: second}}
	if _, err := tables.Verify(rules); err != nil {
		t.Error(err)
	}
}

// One transaction maps all of a pod's ports, and one transaction unmaps the ports of a batch of pods.
func TestTransactions(t *testing.T) {
	k, _, tables := open(t)
	var pods []hold.Hold
	for i := range k.Batch {
		host, pod := fmt.Sprintf(":%d", 1000+i), fmt.Sprintf("10.88.%d.%d:80", i/250, 1+i%250)
		pods = append(pods, hold.Hold{Owner: hold.NewID(), Spec: &hostports.Spec{Link: "x", Mappings: []nft.Mapping{
			mapping("tcp", "192.0.2.1"+host, pod), mapping("tcp", "[::]"+host, fmt.Sprintf("[fd88::%x]:80", i)), mapping("udp", "0.0.0.0"+host, pod),
		}}})
	}
	if len(pods) < 100 {
		t.Errorf("a batch has %d pods", len(pods))
	}
	transactions := func(what string, want int, do func()) {
		t.Helper()
		before, err := tables.Generation()
		must(t, err)
		do()
		after, err := tables.Generation()
		must(t, err)
		if got := int(after - before); got != want {
			t.Errorf("%s takes %d transactions, want %d", what, got, want)
		}
	}
	transactions("mapping the ports of each pod", len(pods), func() {
		for _, h := range pods {
			must(t, k.Acquire(t.Context(), h))
		}
	})
	transactions("unmapping the ports of all", 1, func() { must(t, errors.Join(k.Release(t.Context(), pods)...)) })
	if left, err := tables.Mapped(instance); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Others have deleted some elements of a pod's ports. Release still removes the rest of them.
func TestReleaseOfWhatIsLeft(t *testing.T) {
	at := nettest.Node(t)
	tables := nft.Open(at)
	keeper := table.New(table.Options{Tables: tables, Ruleset: nft.Ruleset{
		Instance: instance, CutLow: 1<<30 + 2, CutHigh: 1<<30 + 1023, Live: 1 << 30, HostPorts: true,
	}})
	must(t, keeper.Kind().Acquire(t.Context(), hold.Hold{Owner: hold.NewID(), Spec: &table.Spec{Instance: instance}}))
	first, second := mapping("tcp", "0.0.0.0:1000", "10.88.0.7:80"), mapping("udp", "0.0.0.0:1000", "10.88.0.7:80")
	must(t, keeper.Map("first22222", []nft.Mapping{first, second}))
	c, err := nftables.New(nftables.WithNetNSFd(at.Fd()))
	must(t, err)
	c.FlushSet(&nftables.Set{Name: "hairpin4", Table: &nftables.Table{Name: stamp.Table(instance), Family: nftables.TableFamilyINet}})
	must(t, c.Flush())
	must(t, tables.Unmap(instance, []nft.Port{{Owner: "first22222", Mapping: first}}))
	must(t, keeper.Unmap([]hold.ID{"first22222"}))
	if left, err := tables.Mapped(instance); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Left fails to look into the tables of lost agents. Release then fails for the host ports of adopted
// pods, but not for those of the other pods in the same batch, which it has unmapped.
func TestReleaseOfAdoptedFails(t *testing.T) {
	unseen := errors.New("cannot see other agents' tables")
	maps := new(noMaps)
	k := hostports.New(hostports.Options{Maps: maps, Left: func() error { return unseen }}).Kind()
	adopted := hold.Hold{Owner: "adopted222", Spec: &hostports.Spec{Link: "x"}}
	other := hold.Hold{Owner: "other22222", Spec: &hostports.Spec{Link: "y", Mappings: []nft.Mapping{mapping("tcp", "0.0.0.0:1000", "10.88.0.7:80")}}}
	errs := k.Release(t.Context(), []hold.Hold{other, adopted, other, adopted})
	for i, want := range []error{nil, unseen, nil, unseen} {
		if !errors.Is(errs[i], want) {
			t.Errorf("hold %d of 4: %v, want %v", i+1, errs[i], want)
		}
	}
	maps.err = errors.New("the table is locked")
	for i, err := range k.Release(t.Context(), []hold.Hold{other, adopted}) {
		if !errors.Is(err, maps.err) {
			t.Errorf("without a transaction, hold %d of 2: %v", i+1, err)
		}
	}
}

// noMaps has no host ports, and its Unmap returns err.
type noMaps struct {
	hostports.Maps
	err error
}

func (m *noMaps) Unmap([]hold.ID) error { return m.err }
