// Package routestest has fake verbs, without an agent, and serves them on a real socket,
// for tests of programs that talk to an agent.
package routestest

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/hold"
)

// Result is the answer of Add.
const Result = `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/a"}],"ips":[{"address":"10.88.0.7/32","interface":0}]}`

// Verbs is an agent that keeps attachments in memory and nothing else.
type Verbs struct {
	// Every verb that can fail first calls Hook with its name, if Hook is not nil, and
	// returns its error.
	Hook func(ctx context.Context, verb string, w server.When) error
	// List and Delete call Filter with their filter, if Filter is not nil.
	Filter func(api.Filter)
	// DeletedOwed is how many holds deletions say are owed.
	DeletedOwed int
	// RetryOwed calls Retried with the owners that it gets, if Retried is not nil.
	Retried func([]hold.ID)
	// Unreadable is the reason why the queue of deletions cannot be read; "": it can.
	Unreadable string

	mu   sync.Mutex
	list []api.Attachment
}

func (v *Verbs) hook(ctx context.Context, verb string, w server.When) error {
	if v.Hook == nil {
		return nil
	}
	return v.Hook(ctx, verb, w)
}

// Put makes attachments.
func (v *Verbs) Put(list ...api.Attachment) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.list = append(v.list, list...)
}

// Attachment returns an attachment with everything in it.
func Attachment(id, container string) api.Attachment {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return api.Attachment{
		ID: id, State: "owed", Network: "net", ContainerID: container, Ifname: "eth0", Netns: "/run/netns/a",
		Pod:  &api.Pod{Namespace: "default", Name: "web-0", UID: "u1", InfraContainer: container},
		Pool: "default", Mode: "routed", Addresses: []string{"10.88.0.7", "fd00::7"}, HostPorts: []string{"tcp 0.0.0.0:8080 to 10.88.0.7:80"},
		Bandwidth: &api.Bandwidth{IngressRate: 10_000_000, IngressBurst: 1_000_000}, MAC: "0a:00:00:00:00:07", MTU: 1500,
		HostVeth: "babcd" + id, Created: at, Releasing: &at,
		Owed: []api.Owed{owed(id, at)},
	}
}

func owed(id string, at time.Time) api.Owed {
	return api.Owed{Owner: id, Kind: "link", What: "link babcd" + id, Since: at, Tries: 3, Next: at, Error: "device busy"}
}

// Add returns Result.
func (v *Verbs) Add(ctx context.Context, req api.AddRequest, w server.When) (json.RawMessage, error) {
	if err := v.hook(ctx, "add", w); err != nil {
		return nil, err
	}
	return json.RawMessage(Result), nil
}

// Check finds nothing wrong.
func (v *Verbs) Check(ctx context.Context, _ api.AddRequest, w server.When) error {
	return v.hook(ctx, "check", w)
}

// GC deletes nothing.
func (v *Verbs) GC(ctx context.Context, _ api.GCRequest, w server.When) (api.Deleted, error) {
	return api.Deleted{Owed: v.DeletedOwed, IDs: []string{"aaaaaaaaaa"}}, v.hook(ctx, "gc", w)
}

// Adopt answers with everything that the types can say.
func (v *Verbs) Adopt(ctx context.Context, _ api.AdoptRequest) (api.Adopted, error) {
	a := Attachment("aaaaaaaaaa", "c1")
	return api.Adopted{
		Attachments: []api.AdoptedAttachment{
			{Outcome: api.OutcomeAdopted, ID: a.ID, Pod: a.Pod, ContainerID: "c1", Ifname: "eth0", Network: "cbr0", Plugins: []string{"bridge", "portmap"}},
			{Outcome: api.OutcomeGone, ContainerID: "c2", Ifname: "eth0", Network: "cbr0", Plugins: []string{"bridge"}},
			{Outcome: api.OutcomeKnown, ID: "bbbbbbbbbb", ContainerID: "c3", Ifname: "net1", Network: "storage", Plugins: []string{"macvlan"}},
		},
		Problems: []api.AdoptProblem{{Path: "/var/lib/cni/results/cbr0-c4-eth0", Reason: "decoding it: unexpected end of JSON input"}},
	}, v.hook(ctx, "adopt", server.When{})
}

// List only looks at the filter's container and state.
func (v *Verbs) List(f api.Filter) []api.Attachment {
	_ = v.hook(context.Background(), "list", server.When{})
	if v.Filter != nil {
		v.Filter(f)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(v.list), func(a api.Attachment) bool {
		return f.Container != "" && f.Container != a.ContainerID || f.State != "" && f.State != a.State
	})
}

// Get finds an attachment by its ID.
func (v *Verbs) Get(id hold.ID) (api.Attachment, bool) {
	_ = v.hook(context.Background(), "get", server.When{})
	for _, a := range v.List(api.Filter{}) {
		if a.ID == string(id) {
			return a, true
		}
	}
	return api.Attachment{}, false
}

// Delete deletes by container.
func (v *Verbs) Delete(ctx context.Context, f api.Filter, _ bool, w server.When) (api.Deleted, bool, error) {
	if v.Filter != nil {
		v.Filter(f)
	}
	return v.drop(ctx, w, func(a api.Attachment) bool { return a.ContainerID == f.Container })
}

// DeleteOne deletes by ID.
func (v *Verbs) DeleteOne(ctx context.Context, id hold.ID, _ bool, w server.When) (api.Deleted, bool, error) {
	return v.drop(ctx, w, func(a api.Attachment) bool { return a.ID == string(id) })
}

func (v *Verbs) drop(ctx context.Context, w server.When, match func(api.Attachment) bool) (api.Deleted, bool, error) {
	if err := v.hook(ctx, "delete", w); err != nil {
		return api.Deleted{}, true, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	before := len(v.list)
	v.list = slices.DeleteFunc(v.list, match)
	n := before - len(v.list)
	return api.Deleted{Released: n, Owed: v.DeletedOwed}, n > 0, nil
}

// Status returns a complete status even with the hook's error.
func (v *Verbs) Status(ctx context.Context, _ string) (api.Status, error) {
	states := map[string]int{}
	v.mu.Lock()
	for _, a := range v.list {
		states[a.State]++
	}
	v.mu.Unlock()
	return api.Status{
		Version: "v0", Instance: "abcdefghij", Root: "/", PID: 1, Started: time.Unix(1, 0),
		Attachments: states, Owed: v.DeletedOwed, Pools: pools(), Deletions: api.DeletionCount{Queued: 2, Attachments: 1, Damaged: 1, Spares: 7, Filling: true, Error: v.Unreadable},
		History: api.HistoryCount{Lost: 3, Error: "no space left on device"},
		Lacks:   api.Lacks(), Overlaps: []string{"pool default: 10.88.0.0/16 overlaps the address 10.88.0.1/24 of cni0"},
		Refused:   "config /etc/berth/berthd.yaml: line 22: unknown key \"mut\": perhaps \"mtu\" is meant",
		Displaced: "stat /var/lib/berth/ledger.db: no such file or directory; all that the agent writes now is lost when it ends",
		Cluster: &api.ClusterStatus{
			Node: "n1", Lacks: "pods of this node get no addresses of the CIDRs that the cluster means for them: 10.244.1.0/24 overlaps the address 10.244.1.1/24 of cni0",
			Failures:      []string{"the API server does not say what there is of nodes since 2026-01-02T03:04:05Z: refused with 503"},
			UnroutedNodes: 3, Unrouted: []api.UnroutedNode{{Node: "n3", Reason: "the CIDR 10.244.2.0/24 of its pods overlaps those of node n2: [10.244.2.0/24]"}},
			Events: map[string]uint64{api.ClusterEventWritten: 5, api.ClusterEventRetried: 4, api.ClusterEventRefused: 1, api.ClusterEventDropped: 2},
		},
	}, v.hook(ctx, "status", server.When{})
}

// Ready finds everything ready.
func (v *Verbs) Ready(ctx context.Context, _ api.StatusRequest) error {
	return v.hook(ctx, "ready", server.When{})
}

// Pools has one pool of two blocks, one of them larger than 2^53.
func (v *Verbs) Pools() []api.Pool {
	_ = v.hook(context.Background(), "pools", server.When{})
	return pools()
}

func pools() []api.Pool {
	return []api.Pool{{Name: "default", Default: true, Exhausted: "pool default has no free IPv4 address", CIDRs: []api.PoolCIDR{
		{CIDR: "10.88.0.0/16", Draining: true, Size: "65534", Used: 1, Resting: 2},
		{CIDR: "fd00::/64", Size: "18446744073709551614", Used: 1},
	}}}
}

// Ledger returns a ledger with one of everything.
func (v *Verbs) Ledger() api.Ledger {
	_ = v.hook(context.Background(), "ledger", server.When{})
	at := time.Unix(1, 0)
	return api.Ledger{
		Schema: 1,
		Epoch:  api.Epoch{Boot: "b", Netns: api.Netns{Dev: 4, Ino: 4026531840, ID: 1}},
		Owners: []json.RawMessage{json.RawMessage(`{"id":"aaaaaaaaaa","parent":"bbbbbbbbbb","meta":{"x":1},` +
			`"names":[{"space":"address","name":"10.88.0.7"}],` +
			`"holds":[{"kind":"link","spec":{"name":"babcdaaaaaaaaaa"}}],"releasing":"2026-01-02T03:04:05Z"}`)},
		Resting:    []api.Resting{{Space: "address", Name: "10.88.0.8", Freed: at, Until: at}},
		Tombstones: []api.Tombstone{{Key: "net/a/eth0", Boot: "b", Started: 1, Until: 2}},
	}
}

// Audit returns one finding of each type.
func (v *Verbs) Audit(ctx context.Context) (api.Audit, error) {
	a := api.Audit{Time: time.Unix(1, 0), Owners: 1, Holds: 2}
	for _, typ := range api.FindingTypes() {
		a.Findings = append(a.Findings, api.Finding{
			Type: typ, Kind: "link", Owner: "aaaaaaaaaa", Of: "pod default/web-0", What: "link babcdaaaaaaaaaa", Detail: "d",
		})
	}
	return a, v.hook(ctx, "audit", server.When{})
}

// AuditPods finds something in a pod as well.
func (v *Verbs) AuditPods(ctx context.Context) (api.Audit, error) {
	a, err := v.Audit(ctx)
	a.Findings = append(a.Findings, api.Finding{
		Type: "changed", Kind: "link", Owner: "aaaaaaaaaa", Of: "pod default/web-0", What: "interface eth0 in /run/netns/a",
		Detail: "interface eth0 in /run/netns/a: changed: down; mtu 1300, not 1500", Differences: []string{"down", "mtu 1300, not 1500"},
	})
	return a, err
}

// Owed returns one of everything: what the attachments owe, a hold that the agent itself
// owes and cannot try, and deletions.
func (v *Verbs) Owed() api.OwedList {
	_ = v.hook(context.Background(), "owed", server.When{})
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	list := api.OwedList{Deletions: api.Deletions{
		Queued: []api.QueuedDeletion{{
			Name: "0123456789abcdef-0000000000000001-01234567.json", Network: "net", ContainerID: "c9", Ifname: "eth0", Pod: &api.Pod{Namespace: "default", Name: "web-9"}, Link: "babcdccccccccccc",
			Addresses: []string{"10.88.0.9"}, Netns: "/run/netns/c", Written: at, Cut: true, Reason: "connection refused",
		}},
		Damaged: []api.DamagedDeletion{{Name: "junk", Since: at, Error: "the checksum is wrong"}},
		Spares:  7, Error: v.Unreadable,
	}}
	for _, a := range v.List(api.Filter{}) {
		for _, o := range a.Owed {
			list.Holds = append(list.Holds, api.OwedHold{Owed: o, Network: a.Network, ContainerID: a.ContainerID, Ifname: a.Ifname, Pod: a.Pod})
		}
	}
	list.Holds = append(list.Holds, api.OwedHold{Owed: api.Owed{
		Owner: "nnnnnnnnnn", Kind: "bpf", What: "bpf pin", Since: at, Error: `this program does not know the kind "bpf"`,
	}})
	return list
}

// Health has a way that is well, one that is not, and one that nobody has tried.
func (v *Verbs) Health() api.ClusterHealth {
	_ = v.hook(context.Background(), "nodes", server.When{})
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return api.ClusterHealth{
		Enabled: true, Node: "n1", Addresses: []string{"10.88.0.2"}, Interval: 30 * time.Second,
		Probes: []api.HealthProbe{
			{Node: "n2", Path: api.PathNode, Family: "IPv4", Address: "192.0.2.2", Tried: at, Answered: at.Add(-time.Minute), Failures: 2, Error: "no reply within 2s"},
			{Node: "n2", Path: api.PathPod, Family: "IPv4", Address: "10.88.2.2", Reachable: true, Latency: 421 * time.Microsecond, Tried: at, Answered: at},
			{Node: "n3", Path: api.PathPod, Family: "IPv6", Address: "fd00:88:3::2"},
		},
	}
}

// ClusterPods has a pod.
func (v *Verbs) ClusterPods(ctx context.Context) (api.ClusterPods, error) {
	if err := v.hook(ctx, "cluster_pods", server.When{}); err != nil {
		return api.ClusterPods{}, err
	}
	return api.ClusterPods{
		Enabled: true, Node: "n1", Asked: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Version: "4711",
		Pods: []api.Pod{{Namespace: "default", Name: "web-0", UID: "u1"}},
	}, nil
}

// History has the attachments, and one that is gone.
func (v *Verbs) History(f api.PastFilter) api.PastReader {
	_ = v.hook(context.Background(), "history", server.When{})
	r := &pasts{}
	for _, at := range append(v.List(api.Filter{}), Gone().Attachment) {
		p := api.Past{Attachment: at}
		if at.ID == Gone().Attachment.ID {
			p = Gone()
		}
		if f.Matches(p) && (f.Limit == 0 || len(*r) < f.Limit) {
			*r = append(*r, p)
		}
	}
	return r
}

// Gone returns what became of an attachment that is gone, with everything in it.
func Gone() api.Past {
	p := api.Past{Attachment: Attachment("gggggggggg", "c0"), AskedBy: api.AskedQueued}
	later := func(ms int) *time.Time {
		t := p.Attachment.Created.Add(time.Hour + time.Duration(ms)*time.Millisecond)
		return &t
	}
	p.Attachment.State, p.Attachment.Owed = api.StateReleasing, nil
	p.Attachment.Releasing = later(0)
	p.Queued, p.CutOff, p.CutByPlugin = later(-9), later(-9), true
	p.Failed, p.CutError, p.Ended = "the pod is gone", "no such device", later(99)
	p.Holds = []api.PastHold{
		{Kind: "link", What: "link babcdgggggggggg", Released: later(50), Failures: 3, Since: later(10), Error: "device busy"},
		{Kind: "flows", What: "flows of 10.88.0.7, fd00::7", Released: later(60)},
	}
	return p
}

// pasts reads a list.
type pasts []api.Past

func (r *pasts) Next() (api.Past, error) {
	if len(*r) == 0 {
		return api.Past{}, io.EOF
	}
	p := (*r)[0]
	*r = (*r)[1:]
	return p, nil
}

func (r *pasts) End() api.PastEnd { return api.PastEnd{} }
func (r *pasts) Close() error     { return nil }

// RetryOwed tries each of the owners.
func (v *Verbs) RetryOwed(ctx context.Context, ids []hold.ID) (api.Retried, error) {
	if v.Retried != nil {
		v.Retried(ids)
	}
	return api.Retried{Holds: len(ids), Deletions: 1}, v.hook(ctx, "retry", server.When{})
}
