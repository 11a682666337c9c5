package lease

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/nettest"
)

// chooser returns an agent of a cluster with these pools: blue is the default, amber is the default of namespaces with team=x, far
// is for nodes elsewhere, odd has a selector that is none, and old is being deleted.
func chooser() *agent {
	a := newAgent(&store{networks: map[string]*v1alpha1.NodeNetwork{}}, "me")
	amber, far, odd, old := ippool("amber", true), ippool("far", true), ippool("odd", false), ippool("old", false)
	amber.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}}
	far.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "b"}}
	odd.Spec.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: "Resembles"}}}
	old.DeletionTimestamp = &metav1.Time{}
	v := a.View()
	v.Pools([]*v1alpha1.IPPool{ippool("blue", true), ippool("red", false), amber, far, odd, old})
	keys, _ := v.NamespaceLabels()
	v.Namespaces([]Meta{{Name: "plain"}, {Name: "x", Labels: map[string]string{"team": "x"}}, {Name: "reds", Pool: "red"}}, keys)
	v.Pods([]Meta{
		{Namespace: "plain", Name: "p", UID: "1"}, {Namespace: "x", Name: "p", UID: "2"}, {Namespace: "reds", Name: "p", UID: "3"},
		{Namespace: "plain", Name: "red", UID: "4", Pool: "red"}, {Namespace: "plain", Name: "amber", UID: "5", Pool: "amber"},
		{Namespace: "x", Name: "amber", UID: "6", Pool: "amber"}, {Namespace: "plain", Name: "far", UID: "7", Pool: "far"},
		{Namespace: "plain", Name: "odd", UID: "8", Pool: "odd"}, {Namespace: "plain", Name: "old", UID: "9", Pool: "old"},
		{Namespace: "plain", Name: "no", UID: "10", Pool: "\x00; rm -rf /"}, {Namespace: "reds", Name: "blue", UID: "11", Pool: "blue"},
	})
	a.ledger.own = []string{"mine"}
	a.ledger.given = config.Given{Default: "blue"}
	return a
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		pod   string // namespace/name/UID
		named string
		want  string // a pool, or "!" and a part of the error
	}{
		{"plain/p/1", "", "blue"},
		{"x/p/2", "", "amber"},
		{"reds/p/3", "", "red"},
		{"reds/blue/11", "", "blue"},
		{"plain/p/1", "red", "red"},
		{"plain/p/1", "mine", "mine"},
		{"reds/p/3", "mine", "red"},
		{"plain/p/1", "none", "!no IPPool \"none\""},
		{"plain/red/4", "", "red"},
		{"x/amber/6", "", "amber"},
		{"plain/amber/5", "", "!pod plain/amber: the namespaceSelector of IPPool amber"},
		{"plain/far/7", "", "!nodeSelector of IPPool far"},
		{"plain/odd/8", "", "!selector of IPPool odd is none"},
		{"plain/old/9", "", "!IPPool old is being deleted"},
		{"plain/no/10", "", `!no IPPool "\x00; rm -rf /"; it has amber, blue`},
		{"", "", "blue"},
	} {
		a := chooser()
		var pod *api.Pod
		if f := strings.Split(c.pod, "/"); len(f) == 3 {
			pod = &api.Pod{Namespace: f[0], Name: f[1], UID: f[2]}
		}
		got, err := a.Choose(t.Context(), pod, c.named)
		if part, wrong := strings.CutPrefix(c.want, "!"); wrong {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s, named %q: %v, want an error with %q", c.pod, c.named, err, part)
			}
		} else if err != nil || got != c.want {
			t.Errorf("%s, named %q: pool %q, %v, want %q", c.pod, c.named, got, err, c.want)
		}
		if a.api.asked > 0 {
			t.Errorf("%s: the API server was asked %d times for what the agent knows", c.pod, a.api.asked)
		}
	}
}

// The agent asks the API server for a pod that it has not heard of, also if it knows another pod of the name. What a successor asks
// for does not count. If the API server does not answer, the pod gets the default pool as the ledger has it.
func TestChooseForUnknownPod(t *testing.T) {
	a := chooser()
	a.api.pods = map[string]Meta{"plain/new": {UID: "20", Pool: "red"}, "plain/red": {UID: "21", Pool: "amber"}, "later/p": {UID: "22"}}
	a.api.spaces = map[string]Meta{"later": {Name: "later", Labels: map[string]string{"team": "x"}}}
	for _, c := range []struct {
		pod  api.Pod
		want string
	}{
		{api.Pod{Namespace: "plain", Name: "new", UID: "20"}, "red"},
		{api.Pod{Namespace: "plain", Name: "red", UID: "former"}, "blue"},
		{api.Pod{Namespace: "later", Name: "p", UID: "22"}, "amber"},
		{api.Pod{Namespace: "plain", Name: "nobody", UID: "23"}, "blue"},
	} {
		if got, err := a.Choose(t.Context(), &c.pod, ""); got != c.want || err != nil {
			t.Errorf("%+v: %q, %v, want %q", c.pod, got, err, c.want)
		}
	}
	a.api.away = true
	a.start() // which has heard of no pool and no pod
	a.Keeper.view = newView(a.Stir)
	pod := &api.Pod{Namespace: "plain", Name: "red", UID: "4"}
	if got, err := a.Choose(t.Context(), pod, ""); got != "blue" || err != nil {
		t.Errorf("while the API server is away: %q, %v", got, err)
	}
	a.ledger.given = config.Given{}
	if got, err := a.Choose(t.Context(), pod, ""); got != "mine" || err != nil {
		t.Errorf("while the API server is away, and without a default pool: %q, %v", got, err)
	}
	a.ledger.own = nil
	var e *api.Error
	if got, err := a.Choose(t.Context(), pod, ""); !errors.As(err, &e) || e.Code != 11 {
		t.Errorf("while the API server is away, and without any pool: %q, %v, want code 11", got, err)
	}
}

// When a pool comes whose selector names another label of namespaces, the agent knows no namespace until it has read all of them
// with that label.
func TestChooseAfterOtherLabels(t *testing.T) {
	a := chooser()
	v := a.View()
	former, changed := v.NamespaceLabels()
	late := ippool("aaa", true)
	late.Spec.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: metav1.LabelSelectorOpExists}}}
	v.PutPool(late)
	select {
	case <-changed:
	default:
		t.Fatal("nobody is told that other labels count")
	}
	v.PutNamespace(Meta{Name: "plain"}, former) // by the reflector that ends
	a.api.spaces = map[string]Meta{"plain": {Name: "plain", Labels: map[string]string{"tier": "1"}}}
	pod := &api.Pod{Namespace: "plain", Name: "p", UID: "1"}
	got, err := a.Choose(t.Context(), pod, "")
	nettest.Must(t, err)
	if got != "aaa" {
		t.Errorf("pool %q, want aaa, whose label the API server has", got)
	}
	keys, _ := v.NamespaceLabels()
	v.Namespaces([]Meta{{Name: "plain"}}, keys)
	if got, err = a.Choose(t.Context(), pod, ""); got != "blue" || err != nil {
		t.Errorf("pool %q, %v, want blue", got, err)
	}
}
