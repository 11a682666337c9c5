package share_test

import (
	"context"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/share"
	"github.com/berth-net/berth/internal/share/apitest"
)

// script is a cluster with a pool of one block, in which everybody does what the test says, when the test says so.
type script struct {
	*model
	t     *testing.T
	setup *process
}

// process is a process of the operator.
type process struct {
	*script
	client *apitest.Client
	share  *share.Sharer
	pool   string // that it looks at
}

func newScript(t *testing.T) *script {
	s := &script{t: t, model: &model{
		Rand: rand.New(rand.NewPCG(1, 1)), server: apitest.New(), agents: map[string]*agent{}, trace: t.Logf,
	}}
	must(t, s.server.Create(&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: v1alpha1.IPPoolSpec{
		IPv4: &v1alpha1.Range{CIDRs: []string{"10.0.0.0/31"}, BlockSize: 31},
	}}))
	s.setup = s.process(apitest.Lies{})
	s.setup.passes()
	return s
}

// process starts an operator, whose cache has what there is.
func (s *script) process(lies apitest.Lies) *process {
	c := &apitest.Client{Server: s.server, Cache: s.server.Cache(s.server.Version()), Lies: lies}
	o := &process{script: s, client: c, share: share.New(c, quiet), pool: "a"}
	o.share.Writers = 1
	return o
}

// passes lets the operator look at the pool as long as it wants to, but not for ever: a cache that stays old may ask for that.
func (o *process) passes() {
	o.t.Helper()
	for range 5 {
		again, err := o.share.Pool(context.Background(), o.pool)
		if apierrors.IsConflict(err) {
			continue // somebody was faster
		}
		must(o.t, err)
		if !again {
			return
		}
	}
}

// fresh is passes with a cache that keeps up.
func (o *process) fresh() {
	o.t.Helper()
	for range 3 {
		o.client.Cache.Advance(1 << 30)
		o.passes()
	}
}

// before has something happen before the operator's nth call from now on, or before its nth call that is a write.
func (o *process) before(n int, write bool, do func() apitest.Fate) {
	o.client.Before = func(w bool) apitest.Fate {
		if write && !w {
			return apitest.Done
		}
		if n--; n != 0 {
			return apitest.Done
		}
		return do()
	}
}

// comes makes a node with its NodeNetwork. Its agent says what it needs.
func (s *script) comes(name string, needs int32) *agent {
	s.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}
	must(s.t, s.server.Create(node))
	must(s.t, s.setup.share.Node(context.Background(), name))
	a := &agent{model: s.model, name: name, node: node.UID, ledger: map[string]*lease{}}
	s.agents[name] = a
	a.wants(needs)
	return a
}

// wants has the agent read its newest NodeNetwork, and say what it needs and holds.
func (a *agent) wants(addresses int32) {
	a.needs = map[string]int32{"a": addresses}
	a.view = apitest.Get[*v1alpha1.NodeNetwork](a.server, a.name)
	a.tell()
}

// has reports whether a node has a block in its spec.
func (s *script) has(name string) bool {
	n := apitest.Get[*v1alpha1.NodeNetwork](s.server, name)
	return n != nil && len(n.Spec.Blocks) > 0
}

func (s *script) want(what string, is bool) {
	s.t.Helper()
	if !is {
		s.t.Fatalf("not as the test is meant: %s\n%s", what, s.dump())
	}
}

// Rules of the protocol that seldom matter. For each there is an order of things in which a program that breaks the rule
// gives a block to two nodes, and one that keeps it does not.
func TestOrder(t *testing.T) {
	for name, c := range map[string]struct {
		lies  apitest.Lies
		naive bool
		play  func(*script, apitest.Lies)
	}{
		"a note is dropped by a live read of its NodeNetwork": {lies: apitest.Lies{CachedGet: true}, play: noteOfUnknown},
		"NodeNetworks are read before the pool":               {lies: apitest.Lies{PoolsFirst: true}, play: noteOfOld},
		"an agent holds what its newest NodeNetwork has":      {naive: true, play: heldTooLate},
		"a CIDR is claimed before blocks of it are given":     {lies: apitest.Lies{CachedPool: "a"}, play: claimedTwice},
		"a NodeNetwork is read before its Node":               {lies: apitest.Lies{NodeFirst: true}, play: nodeMeanwhile},
		"a Node is gone if the API server says so, live":      {lies: apitest.Lies{CachedNode: true}, play: nodeTooNew},
	} {
		t.Run(name, func(t *testing.T) {
			for _, broken := range []bool{false, true} {
				s := newScript(t)
				lies := c.lies
				if !broken {
					lies = apitest.Lies{}
				}
				s.naive = broken && c.naive
				c.play(s, lies)
				s.check()
				switch {
				case broken && s.fault == "":
					t.Errorf("nobody noticed that the rule is broken\n%s", s.dump())
				case !broken && s.fault != "":
					t.Errorf("%s\n%s", s.fault, s.dump())
				}
			}
		})
	}
}

// noteOfUnknown: an operator has noted the block for n1, and is about to give it. The cache of the other one does not have n1 yet.
func noteOfUnknown(s *script, lies apitest.Lies) {
	s.comes("n2", 1)
	other := s.process(lies)
	s.comes("n1", 1)
	one := s.process(apitest.Lies{})
	one.before(2, true, func() apitest.Fate {
		s.want("the block is noted, and not given", !s.has("n1") && len(apitest.Get[*v1alpha1.IPPool](s.server, "a").Status.Pending) == 1)
		other.passes()
		return apitest.Done
	})
	one.passes()
	s.want("n1 has the block", s.has("n1"))
}

// noteOfOld: an operator reads the pool, and n1's NodeNetwork only when the block that is noted there has been given to n1 by another
// one, has come back, and is n2's.
func noteOfOld(s *script, lies apitest.Lies) {
	n1, n2 := s.comes("n1", 1), s.comes("n2", 0)
	dead := s.process(apitest.Lies{})
	dead.before(2, true, func() apitest.Fate { return apitest.Failed })
	_, err := dead.share.Pool(context.Background(), "a")
	s.want("an operator dies", err != nil && len(apitest.Get[*v1alpha1.IPPool](s.server, "a").Status.Pending) == 1)

	one, other := s.process(lies), s.process(apitest.Lies{})
	one.client.Reading = func() {
		one.client.Reading = nil
		other.fresh()
		n1.wants(1)
		s.want("n1 holds the block", n1.ledger["10.0.0.0/31"].sure)
		n1.wants(0)
		other.fresh()
		n1.wants(0)
		other.fresh()
		s.want("the block has come back", !s.has("n1") && apitest.Get[*v1alpha1.IPPool](s.server, "a").Status.Blocks.Given == 0)
		one.client.Cache.Advance(1 << 30)
		n2.wants(1)
		other.fresh()
		n2.wants(1)
		s.want("n2 holds the block", n2.ledger["10.0.0.0/31"].sure)
	}
	one.passes()
}

// heldTooLate: n1's agent has read that it gets the block. When it says that it holds it, the block is n2's.
func heldTooLate(s *script, _ apitest.Lies) {
	n1, n2 := s.comes("n1", 1), s.comes("n2", 0)
	s.setup.fresh()
	n1.view = apitest.Get[*v1alpha1.NodeNetwork](s.server, "n1")
	s.want("n1 gets the block", s.has("n1"))
	pool := apitest.Get[*v1alpha1.IPPool](s.server, "a").DeepCopy()
	pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"name": "n2"}}
	must(s.t, s.server.Update(pool, false))
	n2.wants(1)
	s.setup.fresh()
	n2.wants(1)
	s.want("n2 holds the block", n2.ledger["10.0.0.0/31"].sure)
	n1.tell()
}

// nodeTooNew: the cache of an operator does not have the Node n1 yet, which holds the block.
func nodeTooNew(s *script, lies apitest.Lies) {
	n2 := s.comes("n2", 1)
	other := s.process(lies)
	n1 := s.comes("n1", 1)
	s.setup.fresh()
	n1.wants(1)
	s.want("n1 holds the block", n1.ledger["10.0.0.0/31"].sure)
	other.passes()
	for range 2 {
		must(s.t, other.share.Node(context.Background(), "n1"))
	}
	other.passes()
	n2.wants(1)
}

// nodeMeanwhile: n1 comes while an operator reads what there is of it. Its NodeNetwork gets the block, and somebody deletes it.
func nodeMeanwhile(s *script, lies apitest.Lies) {
	n2 := s.comes("n2", 0)
	one := s.process(lies)
	one.before(2, false, func() apitest.Fate {
		n1 := s.comes("n1", 1)
		s.setup.fresh()
		n1.wants(1)
		s.want("n1 holds the block", n1.ledger["10.0.0.0/31"].sure)
		must(s.t, s.server.Delete(&v1alpha1.NodeNetwork{}, "n1", ""))
		one.passes()
		return apitest.Done
	})
	must(s.t, one.share.Node(context.Background(), "n1"))
	n2.wants(1)
	one.fresh()
	n2.wants(1)
}

// claimedTwice: an operator is about to write that the pool b claims a CIDR. Meanwhile the older pool a gets it, too, and gives it to
// n2.
func claimedTwice(s *script, lies apitest.Lies) {
	const contested = "10.0.0.2/31"
	must(s.t, s.server.Create(&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: v1alpha1.IPPoolSpec{
		IPv4: &v1alpha1.Range{CIDRs: []string{contested}, BlockSize: 31},
	}}))
	n1, n2 := s.comes("n1", 0), s.comes("n2", 4) // two blocks
	n1.needs = map[string]int32{"b": 1}
	n1.tell()
	one := s.process(lies)
	one.pool = "b"
	one.before(2, true, func() apitest.Fate { // the first write is that of the finalizer
		pool := apitest.Get[*v1alpha1.IPPool](s.server, "a").DeepCopy()
		pool.Spec.IPv4.CIDRs = append(pool.Spec.IPv4.CIDRs, contested)
		must(s.t, s.server.Update(pool, false))
		s.setup.fresh()
		n2.wants(4)
		s.want("n2 holds the block", n2.ledger[contested] != nil && n2.ledger[contested].sure)
		return apitest.Done
	})
	one.passes()
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
