// Package notice tells the people of a Kubernetes cluster, by Events, what goes wrong with a node's pods and with the node's part
// of the network: `kubectl describe pod` and `kubectl describe node` show these. Nothing waits for it: who has something to say
// (Say) leaves it in memory, where there is room for some of it, and Keep writes it when the API server has time. Nothing that goes
// well is an Event, but for the end of what went wrong: no pod that comes and goes costs a write.
//
// Events are of events.k8s.io/v1, not of v1: it is the newer of two views of the same objects. It has a count of its own for what
// repeats (the series), which one small patch raises, and its objects say which node's agent speaks (reportingInstance), by which
// the cluster can hold each agent to its own name. kubectl shows both the same. The operator has the same right to it.
package notice

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Object is what a notice is about.
type Object struct {
	Kind      string // Pod or Node
	Namespace string // of a Pod
	Name      string
	UID       string // of a Pod, as the runtime knows it: for a static pod it is the kubelet's, as in the kubelet's own Events
}

const kindNode = "Node"

// Node returns the object of a node. Its UID is its name, as in the kubelet's Events about its node: kubectl looks for both.
func Node(name string) Object { return Object{Kind: kindNode, Name: name, UID: name} }

// Notice is what people are told of an object.
type Notice struct {
	About  Object
	Reason string // one word for programs, such as AddressesExhausted
	Action string // what the agent did, one word
	Text   string // for people; an Event keeps the first 1,024 bytes
	Of     string // what the notice is of, if that can change: a notice of something else is another Event
	Normal bool   // nothing is wrong
}

// Event is a notice as the API server has it.
type Event struct {
	Notice
	Name        string
	First, Last time.Time
	Count       int // how often it was so
}

// API takes Events.
type API interface {
	// CreateEvent makes an Event. The error is ErrRefused if the API server will not take it, however often it is asked, and ErrOver
	// if that is because the namespace goes.
	CreateEvent(context.Context, Event) error
	// CountEvent tells how often, and when last, an Event was so that is there. The error is ErrGone if it is not there any more.
	CountEvent(context.Context, Event) error
}

// ErrRefused says that the API server does not take an Event, such as because the agent lacks the right. ErrOver says that the Event's
// namespace goes, and all Events in it: nobody misses this one. ErrGone says that an Event is not there any more: the API server
// forgets Events after an hour.
var (
	ErrRefused = errors.New("the API server does not take the Event")
	ErrOver    = errors.New("the namespace of the Event is going")
	ErrGone    = errors.New("the Event is gone")
)

// Counts say what became of what was said.
type Counts struct {
	Written uint64 // Events made, or counted up
	Retried uint64 // writes that failed, and that are tried again: nothing is lost by these
	Refused uint64 // Events, or repetitions, that the API server did not take; not those in namespaces that go
	Dropped uint64 // notices for which there was no room, and those that nobody could write for an hour
}

// most is how many topics of pods there may be at once. A topic is small, and a node has seldom more pods than that. What is to be
// said of the node itself has room always: there are a handful of reasons.
const most = 256

// topic is what was said of one object for one reason.
type topic struct {
	Event           // Count counts what was said
	told  int       // the Count that the API server has; 0: it does not have the Event
	next  time.Time // when it may be written next
	wait  time.Duration
	tries int // that failed in a row
}

type key struct {
	about  Object
	reason string
}

// Notices are a node's notices.
type Notices struct {
	Every time.Duration // how often Watch looks: review, but in tests

	api  API
	now  func() time.Time
	wake chan struct{} // has a token if there is something to write

	mu     sync.Mutex
	topics map[key]*topic
	counts Counts
}

// New returns Notices. It asks nobody anything before Keep.
func New(api API) *Notices {
	return &Notices{Every: review, api: api, now: time.Now, wake: make(chan struct{}, 1), topics: map[key]*topic{}}
}

// Say has people told. It never waits. If too much is to be told already, the notice is dropped, and counted.
func (n *Notices) Say(s Notice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.say(s) {
		n.counts.Dropped++
	}
}

// offer has people told, and reports whether there was room. A notice without room is not counted: the caller says it again.
func (n *Notices) offer(s Notice) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.say(s)
}

// say notes what people are to be told, and reports whether there was room. The caller holds n.mu.
func (n *Notices) say(s Notice) bool {
	now, k := n.now(), key{s.About, s.Reason}
	n.forget(now)
	t := n.topics[k]
	if t == nil && s.About.Kind != kindNode && len(n.topics) >= most && !n.clear(now) {
		return false
	}
	if t == nil {
		t = &topic{}
		n.topics[k] = t
	}
	if t.Count == 0 || t.Of != s.Of { // another Event; it waits as long as a repetition would
		t.Event, t.told = Event{Notice: s, First: now}, 0
	}
	t.Count++
	t.Last = now
	select {
	case n.wake <- struct{}{}:
	default:
	}
	return true
}

// Counts returns what became of what was said.
func (n *Notices) Counts() Counts {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.counts
}

// lasting is how long a topic is remembered after it was said last: as long as the API server has Events.
const lasting = time.Hour

// clear makes room: it forgets the oldest topic that is written, unless that may repeat soon. It reports whether there is room. The
// caller holds n.mu.
func (n *Notices) clear(now time.Time) bool {
	var oldest key
	var found *topic
	for k, t := range n.topics {
		if t.told == t.Count && now.After(t.next) && (found == nil || t.Last.Before(found.Last)) {
			oldest, found = k, t
		}
	}
	if found != nil {
		delete(n.topics, oldest)
	}
	return found != nil
}

// forget forgets the topics that are over, written or not. The caller holds n.mu.
func (n *Notices) forget(now time.Time) {
	for k, t := range n.topics {
		if now.Sub(t.Last) > lasting {
			if t.told == 0 {
				n.counts.Dropped++
			}
			delete(n.topics, k)
		}
	}
}
