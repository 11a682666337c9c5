// Package api has the types of the agent's API: HTTP/JSON over the unix socket
// <root>/run/berth/berthd.sock. openapi.yaml describes the same API for other languages. A
// test compares the types, that document and the server.
//
// Every error answer is an Error, in the form of CNI errors (CNI 1.1,
// section 5, "Error").
package api

import (
	"encoding/json"
	"time"
)

// Limits of every request.
const (
	MaxBody = 1 << 20 // bytes of a request body
	MaxID   = 128     // characters of a container id or network name
)

// Headers that place a request in time, so that a request that is executed after its client
// died does no harm. All are CLOCK_BOOTTIME in nanoseconds.
const (
	HeaderStarted  = "Berth-Started"  // when the client began
	HeaderRunning  = "Berth-Running"  // when the client's own program ran; the runtime asked for the verb between Berth-Started and this time
	HeaderDeadline = "Berth-Deadline" // when the client gives up
)

// Paths of the API.
const (
	PathAttachments = "/v1/attachments"  // POST add, GET list, DELETE all that match; /{id}: GET, DELETE
	PathCheck       = "/v1/check"        // POST
	PathGC          = "/v1/gc"           // POST
	PathAdopt       = "/v1/adopt"        // POST
	PathStatus      = "/v1/status"       // GET, ?pool=; POST a StatusRequest
	PathPools       = "/v1/pools"        // GET
	PathEvents      = "/v1/events"       // GET, a JSON object a line, endless; ?since=SEQ
	PathLedger      = "/v1/ledger"       // GET
	PathAudit       = "/v1/audit"        // GET, ?pods=true looks into pods as well
	PathHistory     = "/v1/history"      // GET, a JSON object a line
	PathOwed        = "/v1/owed"         // GET
	PathOwedRetry   = "/v1/owed/retry"   // POST
	PathHealth      = "/v1/health"       // GET
	PathNodes       = "/v1/health/nodes" // GET, which nodes of the cluster are reached
	PathPods        = "/v1/cluster/pods" // GET, which pods of this node the API server has now
	PathMetrics     = "/metrics"         // GET, Prometheus text
	PathOpenAPI     = "/openapi.yaml"    // GET, the document that describes all of this
)

// Netns identifies a network namespace: a path may be bound to another namespace and an
// inode may be reused at once, so neither alone is enough.
type Netns struct {
	Path string `json:"path"`         // as the runtime gave it
	Dev  uint64 `json:"dev"`          // st_dev of the open file
	Ino  uint64 `json:"ino"`          // st_ino of the open file
	ID   uint64 `json:"id,omitempty"` // the kernel's never-reused cookie (SO_NETNS_COOKIE); 0: not known
}

// AddRequest asks for an attachment (POST /v1/attachments). It is also the body of POST
// /v1/check; Config then has the prevResult.
type AddRequest struct {
	ContainerID string          `json:"containerID"`
	Ifname      string          `json:"ifname"`
	Netns       Netns           `json:"netns"`
	Args        string          `json:"args,omitempty"` // the text of CNI_ARGS: K=V;K=V
	Config      json.RawMessage `json:"config"`         // the plugin's stdin
}

// States of an attachment.
const (
	StateAttaching = "attaching" // an ADD is under way
	StateAttached  = "attached"
	StateReleasing = "releasing" // its release is promised
	StateOwed      = "owed"      // its release is promised, and something of it could not be released yet
)

// States lists an attachment's states.
func States() []string { return []string{StateAttaching, StateAttached, StateReleasing, StateOwed} }

// Attachment has what the agent shows of an attachment.
type Attachment struct {
	ID          string     `json:"id"`
	State       string     `json:"state"` // one of States
	Network     string     `json:"network"`
	ContainerID string     `json:"containerID"`
	Ifname      string     `json:"ifname"`
	Netns       string     `json:"netns"` // path
	Pod         *Pod       `json:"pod,omitempty"`
	Pool        string     `json:"pool"`
	Mode        string     `json:"mode"`
	Addresses   []string   `json:"addresses"`           // without prefix length
	HostPorts   []string   `json:"hostPorts,omitempty"` // such as "tcp 0.0.0.0:8080 to 10.88.0.7:80"
	Bandwidth   *Bandwidth `json:"bandwidth,omitempty"`
	MAC         string     `json:"mac"`
	MTU         int        `json:"mtu"`
	HostVeth    string     `json:"hostVeth"`
	Created     time.Time  `json:"created"`
	Releasing   *time.Time `json:"releasing,omitempty"`
	Owed        []Owed     `json:"owed,omitempty"`
}

// Bandwidth is how fast a pod may be reached (ingress) and may send (egress), as the CNI
// conventions have it: rates are bits a second, bursts are bits, and 0 is no limit. The kernel
// counts bytes.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// Pod has the Kubernetes arguments of CNI_ARGS.
type Pod struct {
	Namespace      string `json:"namespace"`
	Name           string `json:"name"`
	UID            string `json:"uid,omitempty"`
	InfraContainer string `json:"infraContainer,omitempty"`
}

// Filter chooses attachments. As a query: ?network=&container=&ifname=
// &namespace=&pod=&uid=&address=&state=&link=. Empty fields match everything.
// A deletion must name a container, or a namespace and a pod.
type Filter struct {
	Network, Container, Ifname string
	Namespace, Pod, UID        string
	Address                    string
	State                      string
	Link                       string // host veth's name, as in prevResult
}

// Deleted answers a deletion: 200 with Owed 0 when all is released or promised, 206 when
// something is owed. If nothing that the deletion names is known, the answer is 404. If the
// deletion names a whole key (network, container and ifname), the agent has recorded before any
// of these answers that no earlier ADD may make the attachment. A deletion of all of a
// container or of a pod records nothing: an ADD that is still on its way may attach the
// container after the answer. With ?wait=true the agent answers when all is gone, or when the
// deadline is near. If the agent is stopping, or if too many requests wait, the agent answers
// once it has tried every release.
type Deleted struct {
	Released int `json:"released"` // attachments whose deletion is promised or done
	Owed     int `json:"owed"`     // holds whose release has failed so far
	// IDs are the attachments that a GC has released or, with DryRun, would release.
	IDs []string `json:"ids,omitempty"`
}

// GCRequest names the attachments of a network that are valid; the agent releases all
// others of the network (CNI 1.1, section 4, GC). The agent also tries again what earlier releases
// in the network owe, and counts what is still owed (Deleted.Owed).
type GCRequest struct {
	Network string        `json:"network"`
	Valid   []GCValid     `json:"valid"`            // null is an empty list
	MinAge  time.Duration `json:"minAge,omitempty"` // nanoseconds: younger attachments are spared
	DryRun  bool          `json:"dryRun,omitempty"` // release nothing, only say what would be released
}

// GCValid is one valid attachment, as in cni.dev/valid-attachments.
type GCValid struct {
	ContainerID string `json:"containerID"`
	Ifname      string `json:"ifname"`
}

// StatusRequest asks whether the networks are ready that a configuration gives to each pod, those of other plugins too (CNI 1.1, section 4,
// STATUS).
type StatusRequest struct {
	Config json.RawMessage `json:"config"` // the plugin's
}

// Status describes the state of an agent.
type Status struct {
	Version     string         `json:"version"`
	Instance    string         `json:"instance"`
	Root        string         `json:"root"`
	PID         int            `json:"pid"`
	Started     time.Time      `json:"started"`
	Restoring   bool           `json:"restoring"`
	Attachments map[string]int `json:"attachments"` // by state
	Owed        int            `json:"owed"`        // holds
	Deletions   DeletionCount  `json:"deletions"`
	Pools       []Pool         `json:"pools"`
	Lacks       []string       `json:"lacks,omitempty"` // Lack constants: the parts of the nftables table that this kernel cannot have
	History     HistoryCount   `json:"history,omitzero"`
	Overlaps    []string       `json:"overlaps,omitempty"`  // pools in force whose addresses somebody else on the node uses, and who
	Refused     string         `json:"refused,omitempty"`   // why the former configuration is in force, and not the one that the agent read last
	Displaced   string         `json:"displaced,omitempty"` // what has become of the ledger's file; "": the file that the agent writes is in its place
	Cluster     *ClusterStatus `json:"cluster,omitempty"`   // nil: the node belongs to no cluster
}

// The parts of the agent's nftables table that a kernel may lack. The rest of the table
// works all the same.
const (
	LackSources     = "sources"     // nothing keeps a pod from sending with the address of another pod
	LackInvalid     = "invalid"     // packets that belong to no connection leave without masquerade
	LackConnections = "connections" // nothing limits the connections of a pod
	LackMultipath   = "multipath"   // the node speaks MPTCP with pods, and its programs are told late that a pod is gone
	LackHostPorts   = "hostports"   // pods that ask for host ports are not attached
	LackBridges     = "bridges"     // pods behind the bridge of another plugin get no host ports
	LackShadows     = "shadows"     // a pod can get another pod's host port towards a machine that it sends to
)

// Lacks lists the Lack constants.
func Lacks() []string {
	return []string{LackSources, LackInvalid, LackConnections, LackMultipath, LackHostPorts, LackBridges, LackShadows}
}

// StatusError is the answer of GET /v1/status when no attachment can be made (codes 50 and
// 51): the reason, and the agent's status all the same. A pool without a free address is such a
// reason only if the agent's configuration says so (fullNotReady).
type StatusError struct {
	Error
	Status *Status `json:"status,omitempty"`
}

// Health says whether the agent serves requests. If not, it still restores what its ledger
// says, and requests wait.
type Health struct {
	Serving bool `json:"serving"`
}

// Pool has a pool's figures. Numbers of addresses that may exceed 2^53 are strings.
type Pool struct {
	Name      string     `json:"name"`
	Default   bool       `json:"default"`
	CIDRs     []PoolCIDR `json:"cidrs"`
	Exhausted string     `json:"exhausted,omitempty"` // why an ADD would get no address now; "": it would get one
}

// PoolCIDR is one CIDR of a pool.
type PoolCIDR struct {
	CIDR     string `json:"cidr"`
	Draining bool   `json:"draining,omitempty"` // no longer in the config, still in use
	Size     string `json:"size"`               // addresses that can be given out
	Used     int    `json:"used"`
	Resting  int    `json:"resting"` // in cooldown, so not free
}

// Event is something that happened. Seq grows by one with each event. A stream that begins with
// ?since=SEQ gets the later events that the agent still remembers. If the agent ends a stream,
// the last line has type end: Message says why, and Seq repeats the Seq of the event before, so
// that ?since=Seq goes on from there.
type Event struct {
	Seq        uint64      `json:"seq"`
	Time       time.Time   `json:"time"`
	Type       string      `json:"type"` // one of EventTypes
	Owner      string      `json:"owner"`
	Message    string      `json:"message,omitempty"`
	Attachment *Attachment `json:"attachment,omitempty"`
}

// Types of events.
const (
	EventAttaching = "attaching" // an owner is in the ledger, and its holds are being taken
	EventAttached  = "attached"  // the owner has all of its holds
	EventReleasing = "releasing" // the owner's release is promised, and the owner is being cut off
	EventReleased  = "released"  // nothing of the owner is left
	EventOwed      = "owed"      // the release of a hold failed, and is tried again
	EventDrift     = "drift"     // the world differed from the ledger
	EventMended    = "mended"    // what had drifted is as the ledger says again; Message is the drift's message
	EventEnded     = "ended"     // something that the owner holds has ended by itself, as a process does
	EventExhausted = "exhausted" // an ADD has found no free address in a pool; repeated only if another ADD has found a free address since
	EventSet       = "set"       // the agent has set a sysctl of the node's that is not about pods alone
	EventEnd       = "end"       // the stream ends
)

// EventTypes lists the types of events.
func EventTypes() []string {
	return []string{EventAttaching, EventAttached, EventReleasing, EventReleased, EventOwed, EventDrift, EventMended, EventEnded, EventExhausted, EventSet, EventEnd}
}

// Ledger is what the agent's ledger says.
type Ledger struct {
	Schema     int               `json:"schema"`
	Epoch      Epoch             `json:"epoch"`
	Owners     []json.RawMessage `json:"owners"`  // hold.Owner records as they stand, by ID
	Resting    []Resting         `json:"resting"` // the longest rested first
	Tombstones []Tombstone       `json:"tombstones"`
}

// Epoch says which boot and network namespace an agent's records are about.
type Epoch struct {
	Boot  string `json:"boot"`  // the kernel's boot id
	Netns Netns  `json:"netns"` // the agent's own; Path is empty
}

// Resting is a name that has no owner, and that gets none before Until.
type Resting struct {
	Space string    `json:"space"`
	Name  string    `json:"name"`
	Freed time.Time `json:"freed"`
	Until time.Time `json:"until"`
}

// Tombstone says that a key was deleted: the agent refuses an ADD of the key that began
// before Started. Both times are CLOCK_BOOTTIME in nanoseconds.
type Tombstone struct {
	Key     string `json:"key"`  // network/container/ifname
	Boot    string `json:"boot"` // id of the boot to which the times belong
	Started int64  `json:"started"`
	Until   int64  `json:"until"` // when the tombstone is no longer needed
}

// Finding is one line of an audit: something left over or missing.
type Finding struct {
	Type   string `json:"type"`            // one of FindingTypes
	Kind   string `json:"kind"`            // of the hold; "deletion": a file of the queue
	Owner  string `json:"owner,omitempty"` // ID
	Of     string `json:"of,omitempty"`    // to whom it belongs: pod NAMESPACE/NAME, container ID, pool NAME, or node
	What   string `json:"what"`            // the thing, in ip's or nft's words
	Detail string `json:"detail,omitempty"`
	// Differences says one by one what is wrong with a thing. Detail has all of them
	// together.
	Differences []string `json:"differences,omitempty"`
}

// Types of findings.
const (
	FindingLeftOver   = "left-over"  // the thing has no owner
	FindingMissing    = "missing"    // a hold's thing is not there
	FindingChanged    = "changed"    // a thing is not as it should be
	FindingOwed       = "owed"       // the thing could not be released yet
	FindingUnreadable = "unreadable" // the agent could not look
	FindingQueued     = "queued"     // a deletion that waits for more than a minute
	FindingDamaged    = "damaged"    // a deletion that cannot be read
)

// FindingTypes lists the types of findings.
func FindingTypes() []string {
	return []string{FindingLeftOver, FindingMissing, FindingChanged, FindingOwed, FindingUnreadable, FindingQueued, FindingDamaged}
}

// Audit says where the agent's ledger and the world differ.
type Audit struct {
	Time     time.Time `json:"time"`
	Owners   int       `json:"owners"` // that the audit looked at
	Holds    int       `json:"holds"`
	Findings []Finding `json:"findings"`
}

// Error is a failed verb, as CNI plugins print it.
type Error struct {
	CNIVersion string `json:"cniVersion,omitempty"`
	Code       uint   `json:"code"`
	Msg        string `json:"msg"`
	Details    string `json:"details,omitempty"`
}

func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + ": " + e.Details
}
