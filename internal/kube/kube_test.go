package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/peers"
)

var must = nettest.Must

// node returns a Node: texts are CIDRs and addresses.
func node(name string, texts ...string) corev1.Node {
	n := corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}}
	n.Name = name
	for _, s := range texts {
		if _, err := netip.ParseAddr(s); err == nil {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: s})
		} else {
			n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, s)
		}
	}
	return n
}

// booted returns a Node whose kubelet has told of a boot.
func booted(n corev1.Node, boot string) corev1.Node {
	n.Status.NodeInfo.BootID = boot
	return n
}

// told notes what a Watcher has told.
type told struct {
	self  peers.Node
	mu    sync.Mutex
	all   bool
	nodes map[string]peers.Node
	given []netip.Prefix
	fail  error         // what Given returns
	takes bool          // Given takes the CIDRs nonetheless
	hangs chan struct{} // Given waits for it to be closed, if it is not nil
	fails int           // how often it did
}

func (o *told) All(nodes []peers.Node) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all, o.nodes = true, map[string]peers.Node{}
	for _, n := range nodes {
		o.nodes[n.Name] = n
	}
}

func (o *told) Self(n peers.Node) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.self = n
}

func (o *told) Put(n peers.Node) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.nodes[n.Name] = n
}

func (o *told) Drop(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.nodes, name)
}

func (o *told) Given(_ context.Context, cidrs []netip.Prefix) error {
	o.mu.Lock()
	hangs := o.hangs
	o.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail == nil || o.takes {
		o.given = cidrs
	}
	if o.fail != nil {
		o.fails++
	}
	return o.fail
}

// InForce returns what Given has taken.
func (o *told) InForce() []netip.Prefix {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.given
}

// set changes what Given does.
func (o *told) set(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

// errTaken is why the agent cannot take CIDRs.
var errTaken = errors.New("somebody else on the node uses them")

// refuse has Given return an error from now on.
func (o *told) refuse(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fail = err
}

// refused returns how often Given has returned an error.
func (o *told) refused() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.fails
}

func (o *told) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := fmt.Sprint(o.all, " ", o.given)
	if !slices.Equal(o.self.CIDRs, o.given) || len(o.given) > 0 && !slices.Contains(o.self.Addresses, netip.MustParseAddr("192.0.2.1")) {
		text += fmt.Sprint(" self ", o.self)
	}
	var names []string
	for name := range o.nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		text += fmt.Sprint(" ", name, " ", o.nodes[name].CIDRs, " ", o.nodes[name].Addresses)
		if boot := o.nodes[name].Boot; boot != "" {
			text += " boot " + boot
		}
	}
	return text
}

func follow(t *testing.T, s *kubetest.Server) *told {
	t.Helper()
	_, o := watcher(t, s)
	return o
}

// watcher starts a Watcher, and returns what it tells.
func watcher(t *testing.T, s *kubetest.Server) (*Watcher, *told) {
	t.Helper()
	return patient(t, s, 0)
}

// patient is watcher, of which a Node may have no CIDRs for a time.
func patient(t *testing.T, s *kubetest.Server, patience time.Duration) (*Watcher, *told) {
	t.Helper()
	o := &told{nodes: map[string]peers.Node{}}
	k := config.Kubernetes{Node: "me", Kubeconfig: s.Kubeconfig(t)}
	c, err := Connect(k, "test")
	must(t, err)
	w := New(c, Options{Kubernetes: k, Log: slog.New(slog.DiscardHandler), Given: o.Given, InForce: o.InForce, Others: o})
	w.soonAgain, w.cidrs.patience = time.Millisecond, patience
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.Keep(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return w, o
}

func (o *told) want(t *testing.T, text string) {
	t.Helper()
	have := ""
	nettest.Eventually(t, text, func() bool { have = o.String(); return have == text })
}

// What is left of a node while a reflector collects all of them says as much of the node as all of it.
func TestTransformer(t *testing.T) {
	n := booted(node("a", "10.244.2.0/24", "192.0.2.2", "2001:db8::2"), "x")
	n.Annotations = map[string]string{AnnotationWireGuardKey: "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=", AnnotationWireGuardPort: "51820", "other": "word"}
	left, err := new(nodeStore).Transformer()(&n)
	must(t, err)
	w := &Watcher{Options: Options{Log: slog.New(slog.DiscardHandler)}}
	all, _ := w.other(&n)
	kept, ok := w.other(left.(*corev1.Node))
	if !ok || !reflect.DeepEqual(kept, all) || kept.Boot != "x" || kept.WireGuard.Port == 0 {
		t.Errorf("of %+v is left %+v", all, kept)
	}
	if _, has := left.(*corev1.Node).Annotations["other"]; has {
		t.Error("somebody else's annotation is kept")
	}
}

// A Watcher tells of its own node's CIDRs and of other nodes that have CIDRs and an address, as they come, change and go,
// also across an API server that fails, and that has changed meanwhile.
func TestNodes(t *testing.T) {
	s := kubetest.Serve(t)
	s.Put("nodes", node("me", "10.244.1.0/24", "fd00:244:1::/64", "192.0.2.1"))
	s.Put("nodes", node("a", "10.244.2.0/24", "192.0.2.2", "2001:db8::2", "192.0.2.22"))
	s.Put("nodes", node("new"))
	o := follow(t, s)
	const me = "true [10.244.1.0/24 fd00:244:1::/64]"
	o.want(t, me+" a [10.244.2.0/24] [192.0.2.2 2001:db8::2]")
	s.Put("nodes", node("new", "10.244.3.0/24", "192.0.2.3"))
	s.Put("nodes", node("a", "10.244.2.0/24", "192.0.2.4"))
	o.want(t, me+" a [10.244.2.0/24] [192.0.2.4] new [10.244.3.0/24] [192.0.2.3]")
	for _, status := range []int{500, 429, 403} {
		s.Break(status)
	}
	s.Delete("nodes", "/a")
	s.Put("nodes", node("me")) // which takes nothing from the node: the Node may have been made anew
	s.Break(0)
	o.want(t, me+" new [10.244.3.0/24] [192.0.2.3]")
	s.Put("nodes", node("new", "10.244.3.0/24", "nonsense", "192.0.2.3"))
	s.Put("nodes", node("b", "10.244.4.0/24", "192.0.2.5"))
	o.want(t, me+" b [10.244.4.0/24] [192.0.2.5]")
	s.Put("nodes", node("me", "10.244.9.0/24", "192.0.2.1"))
	o.want(t, "true [10.244.9.0/24] b [10.244.4.0/24] [192.0.2.5]")
	s.Put("nodes", booted(node("b", "10.244.4.0/24", "192.0.2.5"), "x"))
	o.want(t, "true [10.244.9.0/24] b [10.244.4.0/24] [192.0.2.5] boot x")
	follow(t, s).want(t, "true [10.244.9.0/24] b [10.244.4.0/24] [192.0.2.5] boot x") // of a list
}

// An API server that lags behind answers with a list from before: nodes that have come stay, and those that have gone stay away.
func TestOldList(t *testing.T) {
	s := kubetest.Serve(t)
	s.Put("nodes", node("me", "10.244.1.0/24", "192.0.2.1"))
	s.Put("nodes", node("a", "10.244.2.0/24", "192.0.2.2"))
	o := follow(t, s)
	const me = "true [10.244.1.0/24]"
	o.want(t, me+" a [10.244.2.0/24] [192.0.2.2]")
	s.Keep("nodes")
	s.Delete("nodes", "/a")
	s.Put("nodes", node("b", "10.244.3.0/24", "192.0.2.3"))
	const now = me + " b [10.244.3.0/24] [192.0.2.3]"
	o.want(t, now)
	s.Lag("nodes")
	before := s.Listed()
	nettest.Eventually(t, "the watcher to have asked for another list", func() bool { return s.Listed() >= before+3 })
	o.want(t, now)
	s.Lag("")
	s.Put("nodes", node("c", "10.244.4.0/24", "192.0.2.4"))
	o.want(t, now+" c [10.244.4.0/24] [192.0.2.4]")
}

// Lists that are older for long are taken for right: the cluster's store was restored from a backup.
func TestOldListForLong(t *testing.T) {
	g, now := guard{log: slog.New(slog.DiscardHandler), what: "nodes"}, time.Now()
	for _, c := range []struct {
		version string
		after   time.Duration
		taken   bool
	}{{"9", 0, true}, {"8", 0, false}, {"8", olderFor - 1, false}, {"10", olderFor, true}, {"8", olderFor, false}, {"7", 2 * olderFor, true}} {
		err := g.fresh(c.version, now.Add(c.after))
		if (err == nil) != c.taken {
			t.Errorf("a list of version %s, when the newest is %s, after %s: %v", c.version, g.newest, c.after, err)
		}
		if err == nil {
			g.newest = c.version
		}
	}
}

// What the API server does not tell shows, and so does what the node lacks of what the cluster means it to have, until it is over.
func TestFailuresShow(t *testing.T) {
	s := kubetest.Serve(t)
	s.Put("nodes", kubetest.Object{"metadata": kubetest.Object{"name": "me"}})
	w, o := watcher(t, s)
	lacks := func(says string) {
		t.Helper()
		nettest.Eventually(t, "the node to lack "+says, func() bool {
			err := w.Lacks()
			return err == nil && says == "" || err != nil && says != "" && strings.Contains(err.Error(), says)
		})
	}
	give := func(cidr string) {
		s.Put("nodes", kubetest.Object{"metadata": kubetest.Object{"name": "me"}, "spec": kubetest.Object{"podCIDRs": []string{cidr}}})
	}
	lacks("--allocate-node-cidrs")
	give("ten")
	lacks("these are none")
	o.refuse(errTaken)
	give("10.1.0.0/24")
	lacks(errTaken.Error())
	o.refuse(nil)
	give("10.2.0.0/24")
	lacks("")
	if all := w.Failures(); len(all) > 0 {
		t.Errorf("the API server is well, and what fails is %q", all)
	}
	s.Break(500)
	nettest.Eventually(t, "the failure to show", func() bool {
		all := w.Failures()
		return len(all) == 1 && strings.HasPrefix(all[0], "the API server does not say what there is of nodes since 20") && strings.Contains(all[0], "refused with 500")
	})
	s.Break(0)
	nettest.Eventually(t, "the failure to be over", func() bool { return len(w.Failures()) == 0 })
}

// What a node lacks of its CIDRs is neither said of those that are in force, nor of a Node that is new, nor does a late answer about
// former CIDRs hide it.
func TestLacks(t *testing.T) {
	s := kubetest.Serve(t)
	s.Put("nodes", node("me"))
	w, o := patient(t, s, time.Hour)
	nettest.Eventually(t, "the Node to be seen", func() bool {
		w.cidrs.mu.Lock()
		defer w.cidrs.mu.Unlock()
		return !w.cidrs.none.IsZero()
	})
	if err := w.Lacks(); err != nil {
		t.Errorf("of a new Node: %v", err)
	}
	past := func() {
		w.cidrs.mu.Lock()
		defer w.cidrs.mu.Unlock()
		w.cidrs.none = w.cidrs.none.Add(-time.Hour)
	}
	if past(); !errors.Is(w.Lacks(), ErrNone) {
		t.Errorf("of a Node that never gets CIDRs: %v", w.Lacks())
	}
	lacks := func(want error) {
		t.Helper()
		nettest.Eventually(t, fmt.Sprint("the lack ", want), func() bool { return errors.Is(w.Lacks(), want) })
	}
	o.set(func() { o.fail, o.takes = errTaken, true })
	s.Put("nodes", node("me", "10.1.0.0/24", "192.0.2.1"))
	lacks(ErrUnsettled)
	o.set(func() { o.takes = false })
	s.Put("nodes", node("me", "10.2.0.0/24", "192.0.2.1"))
	lacks(ErrRefused)
	hangs := make(chan struct{})
	o.set(func() { o.fail, o.hangs = nil, hangs })
	s.Put("nodes", node("me", "10.3.0.0/24", "192.0.2.1"))
	nettest.Eventually(t, "10.3.0.0/24 to be given", func() bool {
		w.cidrs.mu.Lock()
		defer w.cidrs.mu.Unlock()
		return fmt.Sprint(w.cidrs.given) == "[10.3.0.0/24]" && len(w.cidrs.wake) == 0
	})
	s.Put("nodes", node("me", "none", "192.0.2.1"))
	nettest.Eventually(t, "CIDRs that are none", func() bool { err := w.Lacks(); return err != nil && strings.Contains(err.Error(), "these are none") })
	close(hangs)
	nettest.Eventually(t, "10.3.0.0/24 to be taken", func() bool { return fmt.Sprint(o.InForce()) == "[10.3.0.0/24]" })
	nettest.Eventually(t, "the answer to be noted", func() bool {
		w.condition.mu.Lock()
		defer w.condition.mu.Unlock()
		return fmt.Sprint(w.condition.taken) == "[10.3.0.0/24]"
	})
	if !errors.Is(w.Lacks(), ErrRefused) {
		t.Errorf("after the former CIDRs are taken: %v", w.Lacks())
	}
	s.Put("nodes", node("me", "192.0.2.1"))
	nettest.Eventually(t, "the Node to have none", func() bool { return w.Lacks() == nil })
	if past(); w.Lacks() != nil {
		t.Errorf("of a Node made anew, whose former CIDRs are in force: %v", w.Lacks())
	}
}

// A late answer about former CIDRs says nothing of those that the cluster has given meanwhile.
func TestLateAnswer(t *testing.T) {
	var c cidrs
	a, b := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}, []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24")}
	c.saw(a, nil, time.Now())
	c.told(a, ErrRefused)
	c.saw(b, nil, time.Now())
	if c.told(a, nil); c.failed == nil {
		t.Error("that a is taken hides that b is not")
	}
	if c.told(b, nil); c.failed != nil {
		t.Errorf("b is taken: %v", c.failed)
	}
}
