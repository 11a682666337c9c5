package share_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/share"
	"github.com/berth-net/berth/internal/share/apitest"
)

// lone is an operator that looks at a pool when internal/operator would: when something has changed that counts for the pool,
// and when the look before has asked for another one.
type lone struct {
	*model
	client *apitest.Client
	share  *share.Sharer

	nodes    map[string]*corev1.Node // as they were when it looked last
	networks map[string]*v1alpha1.NodeNetwork
	pools    map[string]*v1alpha1.IPPool
}

// named returns what there is of a kind, by name.
func named[T metav1.Object](s *apitest.Server) map[string]T {
	all := map[string]T{}
	for _, o := range apitest.List[T](s) {
		all[o.GetName()] = o
	}
	return all
}

// compare calls do for each object, as it was and as it is; nil if it was not or is not there.
func compare[T comparable](was, is map[string]T, do func(name string, was, is T)) {
	for name, o := range is {
		if was[name] != o {
			do(name, was[name], o)
		}
	}
	for name, o := range was {
		if _, there := is[name]; !there {
			do(name, o, is[name])
		}
	}
}

// news returns the nodes and the pools that have to be looked at.
func (l *lone) news() (nodes, pools map[string]bool) {
	nodes, pools = map[string]bool{}, map[string]bool{}
	all := false
	n := named[*corev1.Node](l.server)
	compare(l.nodes, n, func(name string, was, is *corev1.Node) {
		if was == nil || is == nil || share.NodeMatters(was, is) {
			nodes[name], all = true, true
		}
	})
	networks := named[*v1alpha1.NodeNetwork](l.server)
	compare(l.networks, networks, func(name string, was, is *v1alpha1.NodeNetwork) {
		if was != nil && is != nil && !share.NetworkMatters(was, is) {
			return
		}
		nodes[name] = true
		names, every := share.NetworkPools(was, is)
		for _, name := range names {
			pools[name] = true
		}
		all = all || every
	})
	p := named[*v1alpha1.IPPool](l.server)
	compare(l.pools, p, func(_ string, was, is *v1alpha1.IPPool) {
		all = all || was == nil || is == nil || share.PoolMatters(was, is)
	})
	for name := range p {
		if all {
			pools[name] = true
		}
	}
	l.nodes, l.networks, l.pools = n, networks, p
	return nodes, pools
}

// look looks until nothing asks for it any more.
func (l *lone) look(t *testing.T) {
	t.Helper()
	again := map[string]bool{}
	for range 1000 {
		nodes, pools := l.news()
		maps.Copy(pools, again)
		clear(again)
		if len(nodes)+len(pools) == 0 {
			return
		}
		l.client.Cache.Advance(1 << 30)
		for _, name := range slices.Sorted(maps.Keys(nodes)) {
			must(t, l.share.Node(context.Background(), name))
		}
		for _, name := range slices.Sorted(maps.Keys(pools)) {
			l.client.Cache.Advance(1 << 30)
			more, err := l.share.Pool(context.Background(), name)
			must(t, err)
			if more {
				again[name] = true
			}
		}
	}
	t.Fatalf("the operator looks without end\n%s", l.dump())
}

// When nothing asks an operator to look at a pool, another look has nothing to do: nobody waits for the look that comes anyway
// after minutes.
func TestStill(t *testing.T) {
	first, worlds := rand.Uint64N(1<<40), uint64(*runs/5)
	if *seed != 0 {
		first, worlds = *seed, 1
	}
	for i := range worlds {
		m := newModel(first + i)
		c := &apitest.Client{Server: m.server, Cache: m.server.Cache(0)}
		l := &lone{model: m, client: c, share: share.New(c, quiet)}
		for range *steps / 10 {
			for range 1 + m.IntN(5) {
				if names := slices.Sorted(maps.Keys(m.agents)); len(names) == 0 || m.IntN(m.crowd) == 0 {
					m.people()
				} else {
					m.agents[names[m.IntN(len(names))]].act()
				}
			}
			l.look(t)
			before, was := m.server.Writes(), m.dump()
			for name := range l.pools {
				_, err := l.share.Pool(context.Background(), name)
				must(t, err)
			}
			if m.server.Writes() != before {
				t.Fatalf("there was something to do left:\n%s\nthen\n%s\nto replay: go test ./internal/share -run 'TestStill$' -v -seed %d",
					was, m.dump(), first+i)
			}
		}
	}
}
