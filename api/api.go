// Package api has the types of the agent's API: HTTP/JSON over the unix socket
// <root>/run/berth/berthd.sock. The document beside it, openapi.yaml, says the
// same for other languages, and a test holds the two and the server together.
//
// Every error answer is an Error, in the form of CNI errors (CNI 1.1,
// section 5, "Error").
package api

import (
	"encoding/json"
	"time"
)

// Limits that every request has to keep.
const (
	MaxBody = 1 << 20 // bytes of a request body
	MaxID   = 128     // characters of a container id or network name
)

// Headers that place a request in time, so that one which is executed after
// its client died does no harm. Both are CLOCK_BOOTTIME in nanoseconds.
const (
	HeaderStarted  = "Berth-Started"  // when the client began
	HeaderDeadline = "Berth-Deadline" // when it gives up
)

// Paths of the API.
const (
	PathAttachments = "/v1/attachments" // POST add, GET list, DELETE all that match; /{id}: GET, DELETE
	PathCheck       = "/v1/check"       // POST
	PathGC          = "/v1/gc"          // POST
	PathStatus      = "/v1/status"      // GET, ?pool=
	PathPools       = "/v1/pools"       // GET
	PathEvents      = "/v1/events"      // GET, a JSON object a line, endless; ?since=SEQ
	PathLedger      = "/v1/ledger"      // GET
	PathAudit       = "/v1/audit"       // GET, ?pods=true looks into pods as well
	PathOwed        = "/v1/owed"        // GET
	PathOwedRetry   = "/v1/owed/retry"  // POST
	PathHealth      = "/v1/health"      // GET
	PathMetrics     = "/metrics"        // GET, Prometheus text
	PathOpenAPI     = "/openapi.yaml"   // GET, the document of all this
)

// Netns identifies a network namespace: a path is re-bound and an inode is
// reused at once, so neither alone does.
type Netns struct {
	Path string `json:"path"`         // as the runtime gave it
	Dev  uint64 `json:"dev"`          // st_dev of the open file
	Ino  uint64 `json:"ino"`          // st_ino of the open file
	ID   uint64 `json:"id,omitempty"` // the kernel's never-reused cookie (SO_NETNS_COOKIE); 0: not known
}

// AddRequest asks for an attachment (POST /v1/attachments; also the body of
// POST /v1/check, whose Config then has the prevResult).
type AddRequest struct {
	ContainerID string          `json:"containerID"`
	Ifname      string          `json:"ifname"`
	Netns       Netns           `json:"netns"`
	Args        string          `json:"args,omitempty"` // CNI_ARGS as it is: K=V;K=V
	Config      json.RawMessage `json:"config"`         // the plugin's stdin
}

// States of an attachment.
const (
	StateAttaching = "attaching" // an ADD is under way
	StateAttached  = "attached"
	StateReleasing = "releasing" // its end is promised
	StateOwed      = "owed"      // its end is promised, and something of it could not be released yet
)

// States lists an attachment's states.
func States() []string { return []string{StateAttaching, StateAttached, StateReleasing, StateOwed} }

// Attachment is what the agent shows of an attachment.
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
	Addresses   []string   `json:"addresses"` // without prefix length
	MAC         string     `json:"mac"`
	MTU         int        `json:"mtu"`
	HostVeth    string     `json:"hostVeth"`
	Created     time.Time  `json:"created"`
	Releasing   *time.Time `json:"releasing,omitempty"`
	Owed        []Owed     `json:"owed,omitempty"`
}

// Pod is what the Kubernetes arguments of CNI_ARGS say.
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
	Link                       string // host veth's name, as prevResult says it
}

// Deleted answers a deletion: 200 with Owed 0 when all is released or
// promised, 206 when something is owed. A deletion of what is not known
// answers 404, after it is recorded that no earlier ADD may bring it back.
// With ?wait=true it is answered when all is gone, or the deadline is near.
type Deleted struct {
	Released int `json:"released"` // attachments whose deletion is promised or done
	Owed     int `json:"owed"`     // holds whose release has failed so far
	// IDs are the attachments that a GC has released, or with DryRun would.
	IDs []string `json:"ids,omitempty"`
}

// GCRequest names the attachments of a network that are valid; all others of
// it are released (CNI 1.1, section 4, GC). What is owed by those that are
// released already is tried again, and counted.
type GCRequest struct {
	Network string        `json:"network"`
	Valid   []GCValid     `json:"valid"`            // null is an empty list
	MinAge  time.Duration `json:"minAge,omitempty"` // nanoseconds: younger attachments are spared
	DryRun  bool          `json:"dryRun,omitempty"` // release nothing, only say what would be
}

// GCValid is one valid attachment, as cni.dev/valid-attachments has it.
type GCValid struct {
	ContainerID string `json:"containerID"`
	Ifname      string `json:"ifname"`
}

// Status says how an agent is.
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
	Lacks       []string       `json:"lacks,omitempty"` // Lack constants: what this kernel cannot have of the nftables table
}

// What a kernel may lack of the agent's nftables table. The rest of it holds.
const (
	LackSources     = "sources"     // pods are not kept from sending in others' names
	LackInvalid     = "invalid"     // what belongs to no connection leaves unmasqueraded
	LackConnections = "connections" // nothing limits the connections of a pod
	LackMultipath   = "multipath"   // the node speaks MPTCP with pods, and its programs are not told that one is gone
)

// Lacks lists them.
func Lacks() []string { return []string{LackSources, LackInvalid, LackConnections, LackMultipath} }

// StatusError is the answer of GET /v1/status when no attachment can be made
// (codes 50 and 51): why, and how the agent is all the same.
type StatusError struct {
	Error
	Status *Status `json:"status,omitempty"`
}

// Health says whether the agent serves requests, or still restores what its
// ledger says and lets them wait.
type Health struct {
	Serving bool `json:"serving"`
}

// Pool is a pool's figures. Numbers of addresses are strings where they may
// exceed 2^53.
type Pool struct {
	Name    string     `json:"name"`
	Default bool       `json:"default"`
	CIDRs   []PoolCIDR `json:"cidrs"`
}

// PoolCIDR is one CIDR of a pool.
type PoolCIDR struct {
	CIDR     string `json:"cidr"`
	Draining bool   `json:"draining,omitempty"` // no longer in the config, still in use
	Size     string `json:"size"`               // addresses that can be given out
	Used     int    `json:"used"`
	Resting  int    `json:"resting"` // in cooldown, not free
}

// Event is something that happened. Seq grows by one an event; a stream that
// begins with ?since=SEQ gets what the agent still remembers after it. A stream
// that the agent ends has a last line of type end: Message says why, and Seq
// is that of the event before it, so that ?since=Seq goes on from there.
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
	EventAttached  = "attached"  // it has all of them
	EventReleasing = "releasing" // its end is promised, and it is being cut off
	EventReleased  = "released"  // nothing of it is left
	EventOwed      = "owed"      // a release failed, and is tried again
	EventDrift     = "drift"     // the world differed from the ledger
	EventEnded     = "ended"     // something of it has come to its end by itself, as a process does
	EventEnd       = "end"       // of the stream
)

// EventTypes lists the types of events.
func EventTypes() []string {
	return []string{EventAttaching, EventAttached, EventReleasing, EventReleased, EventOwed, EventDrift, EventEnded, EventEnd}
}

// Ledger is what the agent's ledger says.
type Ledger struct {
	Schema     int               `json:"schema"`
	Epoch      Epoch             `json:"epoch"`
	Owners     []json.RawMessage `json:"owners"`  // hold.Owner records as they stand, by ID
	Resting    []Resting         `json:"resting"` // longest rested first
	Tombstones []Tombstone       `json:"tombstones"`
}

// Epoch is the boot and the network namespace that an agent's records are of.
type Epoch struct {
	Boot  string `json:"boot"`  // the kernel's boot id
	Netns Netns  `json:"netns"` // the agent's own; Path is empty
}

// Resting is a name that nobody has and nobody gets yet, or not soon.
type Resting struct {
	Space string    `json:"space"`
	Name  string    `json:"name"`
	Freed time.Time `json:"freed"`
	Until time.Time `json:"until"`
}

// Tombstone says that a key was deleted: an ADD of it that began before
// Started is refused. Both times are CLOCK_BOOTTIME in nanoseconds.
type Tombstone struct {
	Key     string `json:"key"`  // network/container/ifname
	Boot    string `json:"boot"` // id of the boot that the times are of
	Started int64  `json:"started"`
	Until   int64  `json:"until"` // the tombstone is not needed any more
}

// Finding is one line of an audit: something left over or missing.
type Finding struct {
	Type   string `json:"type"`            // one of FindingTypes
	Kind   string `json:"kind"`            // of the hold; deletion: a file of the queue
	Owner  string `json:"owner,omitempty"` // ID
	Of     string `json:"of,omitempty"`    // whose it is: pod NAMESPACE/NAME, container ID, pool NAME, or node
	What   string `json:"what"`            // the thing, in ip's or nft's words
	Detail string `json:"detail,omitempty"`
	// Differences are what of a thing is not as it should be, one by one.
	// Detail says them all.
	Differences []string `json:"differences,omitempty"`
}

// Types of findings.
const (
	FindingLeftOver   = "left-over"  // has no owner
	FindingMissing    = "missing"    // is not there
	FindingChanged    = "changed"    // is not as it should be
	FindingOwed       = "owed"       // could not be released yet
	FindingUnreadable = "unreadable" // could not be seen
	FindingQueued     = "queued"     // a deletion that waits for more than a minute
	FindingDamaged    = "damaged"    // a deletion that cannot be read
)

// FindingTypes lists the types of findings.
func FindingTypes() []string {
	return []string{FindingLeftOver, FindingMissing, FindingChanged, FindingOwed, FindingUnreadable, FindingQueued, FindingDamaged}
}

// Audit is what the agent's ledger and the world disagree on.
type Audit struct {
	Time     time.Time `json:"time"`
	Owners   int       `json:"owners"` // looked at
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
