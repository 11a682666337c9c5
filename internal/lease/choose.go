package lease

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/cni"
)

// asking is how long an ADD waits for the API server, if the agent has not heard of the pod or its namespace yet.
const asking = 500 * time.Millisecond

// errAway says that the API server has not answered.
var errAway = errors.New("the API server has not said it")

// Choose returns the pool of a pod: the one that the pod's annotation names, else its namespace's, else the one that the
// network's configuration names, else the first by name of the default pools that the node and the namespace are selected
// for. If the API server does not say what the pod asks for, the pod gets an address of the pool that the configuration names,
// or of the default pool, and the log says so: a pod waits for no API server.
func (k *Keeper) Choose(ctx context.Context, pod *api.Pod, named string) (string, error) {
	if pod == nil || pod.Name == "" {
		return k.unasked(nil, named)
	}
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	asks, namespace, err := k.asks(ctx, pod)
	if err == nil && !k.view.knowsPools() {
		err = fmt.Errorf("which pools there are: %w", errAway)
	}
	switch {
	case err != nil:
		name, failed := k.away(named)
		k.Log.Warn("the agent cannot know which pool a pod asks for", "pod", pod.Namespace+"/"+pod.Name, "pool", name, "err", errors.Join(err, failed))
		return name, failed
	case asks.pool == "":
		return k.unasked(namespace, named)
	}
	return asks.pool, k.view.allows(asks, namespace)
}

// wish is the pool that a pod asks for, and what says so.
type wish struct{ pool, by string }

// asks returns which pool a pod asks for, and its namespace's labels.
func (k *Keeper) asks(ctx context.Context, pod *api.Pod) (wish, labels.Set, error) {
	m, known := k.view.pod(pod)
	if !known {
		var err error
		if m, err = k.API.Pod(ctx, pod.Namespace, pod.Name); err != nil {
			return wish{}, nil, fmt.Errorf("asking for the pod: %w", err)
		}
		if pod.UID != "" && m.UID != pod.UID {
			m.Pool = "" // of the pod's successor, or of its predecessor
		}
	}
	ns, known := k.view.namespace(pod.Namespace)
	if !known {
		var err error
		if ns, err = k.API.Namespace(ctx, pod.Namespace); err != nil {
			return wish{}, nil, fmt.Errorf("asking for the pod's namespace: %w", err)
		}
	}
	of := labels.Set(ns.Labels)
	if of == nil {
		of = labels.Set{} // nil stands for a namespace that nobody knows
	}
	switch {
	case m.Pool != "":
		return wish{m.Pool, fmt.Sprintf("annotation %s of pod %s/%s", v1alpha1.AnnotationPool, pod.Namespace, pod.Name)}, of, nil
	case ns.Pool != "":
		return wish{ns.Pool, fmt.Sprintf("annotation %s of namespace %s", v1alpha1.AnnotationPool, pod.Namespace)}, of, nil
	default:
		return wish{}, of, nil
	}
}

// unasked returns the pool of a pod that asks for none. namespace are its namespace's labels; nil: nobody knows these.
func (k *Keeper) unasked(namespace labels.Set, named string) (string, error) {
	if named != "" {
		return named, k.named(named)
	}
	if !k.view.knowsPools() {
		return k.away("")
	}
	if name := k.view.standard(namespace); name != "" {
		return name, nil
	}
	if name, err := k.Node.OwnDefault(); err == nil {
		return name, nil
	}
	return "", cni.Errorf(cni.CodeTryAgain, "no pool", "no IPPool is the default for this node and the pod's namespace, and the pod asks for none")
}

// named refuses a pool that a network's configuration names, and that is neither the node's own nor the cluster's.
func (k *Keeper) named(name string) error {
	if k.Node.OwnPool(name) || !k.view.knowsPools() {
		return nil
	}
	return k.view.serves(wish{name, "the network's configuration"})
}

// away returns the pool of a pod while nobody can say what it asks for.
func (k *Keeper) away(named string) (string, error) {
	if named != "" {
		return named, nil
	}
	if name := k.Node.Given().Default; name != "" {
		return name, nil
	}
	name, err := k.Node.OwnDefault()
	if err != nil {
		return "", cni.Errorf(cni.CodeTryAgain, "no pool yet", "the agent knows no default pool of the cluster yet, and the API server does not answer")
	}
	return name, nil
}

// knowsPools reports whether the API server has said which pools there are, and which labels this node has.
func (v *View) knowsPools() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.pools != nil && v.node != nil
}

// pod returns what is known of a pod; false if nothing is.
func (v *View) pod(p *api.Pod) (Meta, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m, known := v.pods[Meta{Namespace: p.Namespace, Name: p.Name}.key()]
	return m, known && (p.UID == "" || m.UID == p.UID)
}

func (v *View) namespace(name string) (Meta, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m, known := v.namespaces[Meta{Name: name}.key()]
	return m, known
}

// standard returns the default pool of a namespace with these labels; "": there is none.
func (v *View) standard(namespace labels.Set) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(v.pools)) {
		p := v.pools[name]
		if p.standard && !p.going && p.nodes.Matches(labels.Set(v.node)) && (p.all || namespace != nil && p.namespaces.Matches(namespace)) {
			return name
		}
	}
	return ""
}

// serves returns why the node has no addresses of a pool for anybody; nil: it has, or will have.
func (v *View) serves(w wish) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	p, known := v.pools[w.pool]
	switch {
	case !known:
		return cni.Errorf(cni.CodeConfig, "unknown pool", "%s: the cluster has no IPPool %.80q; it has %s", w.by, w.pool, v.names())
	case p.wrong != nil:
		return cni.Errorf(cni.CodeConfig, "pool not usable", "%s: a selector of IPPool %s is none: %v", w.by, p.name, p.wrong)
	case p.going:
		return cni.Errorf(cni.CodeConfig, "pool not usable", "%s: IPPool %s is being deleted", w.by, p.name)
	case !p.nodes.Matches(labels.Set(v.node)):
		return cni.Errorf(cni.CodeConfig, "pool not for this node", "%s: the nodeSelector of IPPool %s does not select this node", w.by, p.name)
	}
	return nil
}

// allows returns why a pod of a namespace gets no addresses of a pool that it asks for; nil: it does.
func (v *View) allows(w wish, namespace labels.Set) error {
	if err := v.serves(w); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if p := v.pools[w.pool]; p != nil && !p.all && !p.namespaces.Matches(namespace) {
		return cni.Errorf(cni.CodeConfig, "pool not for this namespace", "%s: the namespaceSelector of IPPool %s does not select the pod's namespace", w.by, p.name)
	}
	return nil
}

// Short returns why the node gets no more blocks of a pool, as the API server has said last; "": it may get some.
func (k *Keeper) Short(pool string) string {
	k.view.mu.Lock()
	defer k.view.mu.Unlock()
	if p := k.view.pools[pool]; p != nil {
		return p.short
	}
	return ""
}

// shown is how many pools an error names.
const shown = 10

func (v *View) names() string {
	names := slices.Sorted(maps.Keys(v.pools))
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > shown:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}
