package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/ipam"
)

// ledger is what a node has, without a kernel. It outlives its agent.
type ledger struct {
	given  config.Given
	drains []config.Lease
	used   map[netip.Prefix]int
	own    []string
	unfit  map[netip.Prefix]error
	lost   []netip.Prefix // blocks that were found on the node
	fail   error          // Give's, if it is not nil
}

func (l *ledger) Given() config.Given { return l.given }

func (l *ledger) Blocks() (all []ground.Block) {
	for _, x := range l.given.Leases {
		all = append(all, ground.Block{Lease: x})
	}
	for _, x := range l.drains {
		all = append(all, ground.Block{Lease: x, Drains: true})
	}
	for _, c := range l.lost {
		all = append(all, ground.Block{Lease: config.Lease{Pool: "former", CIDR: c}, Drains: true, Lost: true})
	}
	return all
}

func (l *ledger) Unfit(leases []config.Lease) map[netip.Prefix]error { return l.unfit }

func (l *ledger) Give(_ context.Context, g config.Given) error {
	if l.fail != nil {
		return l.fail
	}
	for _, x := range l.given.Leases {
		if !slices.Contains(g.Leases, x) {
			l.drains = append(l.drains, x)
		}
	}
	l.drains = slices.DeleteFunc(l.drains, func(x config.Lease) bool { return slices.Contains(g.Leases, x) })
	l.lost = slices.DeleteFunc(l.lost, func(c netip.Prefix) bool {
		return slices.ContainsFunc(g.Leases, func(x config.Lease) bool { return x.CIDR == c })
	})
	l.given = g
	return nil
}

// giveBack forgets blocks that drain and of which no pod has an address.
func (l *ledger) giveBack() {
	l.drains = slices.DeleteFunc(l.drains, func(x config.Lease) bool { return l.used[x.CIDR] == 0 })
}

func (l *ledger) Figures() (all []ipam.Figures) {
	for _, b := range l.Blocks() {
		f := ipam.CIDRFigures{CIDR: b.CIDR, Draining: b.Drains, Size: sizeOf(b.CIDR), Used: l.used[b.CIDR]}
		i := slices.IndexFunc(all, func(p ipam.Figures) bool { return p.Pool == b.Pool })
		if i < 0 {
			i = len(all)
			all = append(all, ipam.Figures{Pool: b.Pool})
		}
		all[i].CIDRs = append(all[i].CIDRs, f)
	}
	return all
}

func sizeOf(c netip.Prefix) uint64 { return 1 << (c.Addr().BitLen() - c.Bits()) }

func (l *ledger) Lacking(string) error     { return nil }
func (l *ledger) OwnPool(name string) bool { return slices.Contains(l.own, name) }
func (l *ledger) OwnDefault() (string, error) {
	if len(l.own) == 0 {
		return "", errors.New("no pool")
	}
	return l.own[0], nil
}

// claim takes an address, if a block in force has one.
func (l *ledger) claim() (netip.Prefix, bool) {
	for _, x := range l.given.Leases {
		if l.used[x.CIDR] < int(sizeOf(x.CIDR)) {
			l.used[x.CIDR]++
			return x.CIDR, true
		}
	}
	return netip.Prefix{}, false
}

// store is the cluster's store, with one NodeNetwork for each node.
type store struct {
	version  int
	networks map[string]*v1alpha1.NodeNetwork
	past     []*v1alpha1.NodeNetwork // all versions
	writes   int
}

func (s *store) put(n *v1alpha1.NodeNetwork) *v1alpha1.NodeNetwork {
	s.version++
	n = clone(n)
	n.ResourceVersion = strconv.Itoa(s.version)
	s.networks[n.Name] = n
	s.past = append(s.past, clone(n))
	return clone(n)
}

func (s *store) get(name string) *v1alpha1.NodeNetwork {
	if n := s.networks[name]; n != nil {
		return clone(n)
	}
	return nil
}

func clone(n *v1alpha1.NodeNetwork) (out *v1alpha1.NodeNetwork) {
	raw, err := json.Marshal(n)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		panic(err)
	}
	return out
}

// client is how one node's agent reaches the store.
type client struct {
	*store
	node   string
	away   bool // nothing comes through
	silent bool // the next answer to a write is lost
	pods   map[string]Meta
	spaces map[string]Meta
	asked  int
}

var errDown = errors.New("no answer")

func (c *client) Network(context.Context) (*v1alpha1.NodeNetwork, error) {
	if c.away {
		return nil, errDown
	}
	return c.get(c.node), nil
}

func (c *client) Write(_ context.Context, version string, s v1alpha1.NodeNetworkStatus) (*v1alpha1.NodeNetwork, error) {
	n := c.get(c.node)
	switch {
	case c.away:
		return nil, errDown
	case n == nil || n.ResourceVersion != version:
		return nil, ErrStale
	}
	c.writes++
	n.Status = s
	n = c.put(n)
	if c.silent {
		c.silent = false
		return nil, errDown
	}
	return n, nil
}

func (c *client) Pod(_ context.Context, namespace, name string) (Meta, error) {
	c.asked++
	m, ok := c.pods[namespace+"/"+name]
	if c.away || !ok {
		return Meta{}, errDown
	}
	return m, nil
}

func (c *client) Namespace(_ context.Context, name string) (Meta, error) {
	c.asked++
	m, ok := c.spaces[name]
	if c.away || !ok {
		return Meta{}, errDown
	}
	return m, nil
}

// agent is a node's agent, which can be started again on its ledger.
type agent struct {
	*Keeper
	ledger *ledger
	api    *client
	clock  *time.Time
}

func newAgent(s *store, name string) *agent {
	now := time.Unix(1e9, 0)
	a := &agent{ledger: &ledger{used: map[netip.Prefix]int{}}, api: &client{store: s, node: name}, clock: &now}
	a.start()
	return a
}

func (a *agent) start() {
	a.Keeper = New(Options{
		Node: a.ledger, API: a.api, Log: slog.New(slog.DiscardHandler), Self: func([]netip.Prefix, []netip.Addr) {},
		Ready: func(bool) {}, Others: func() int { return 2 }, Now: func() time.Time { return *a.clock },
	})
	a.View().Node(map[string]string{"zone": "a"}, []netip.Addr{netip.MustParseAddr("192.0.2.1")})
	a.View().Pools([]*v1alpha1.IPPool{ippool("blue", true)})
}

func ippool(name string, standard bool) *v1alpha1.IPPool {
	p := &v1alpha1.IPPool{Spec: v1alpha1.IPPoolSpec{IPv4: &v1alpha1.Range{BlockSize: 30}, Default: standard, PreAllocate: 1}}
	p.Name = name
	return p
}

func block(i int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("10.60.0.%d/30", 4*i)) }
