// Package flows is the kind of what the kernel remembers of a pod's traffic: its
// connection tracking entries and TCP's metrics. These name the pod's addresses, outlive the pod's
// link, and would lead the next pod's packets astray (containernetworking/plugins #123, #1190). Acquire
// has nothing to do. Release comes after the cut, when the pod can make no new entries. Release also
// ends the node's own TCP connections to the pod. One pass over the table serves all pods that wait for
// it.
//
// After the cut no route by the pod's link leads to the pod's addresses. If there is a route to one of
// these addresses all the same, the address is somebody else's: the pod's ADD failed because of that
// route, or the pod is long gone. The entries are then somebody else's, too, and stay.
package flows

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// KindName is the name of the kind.
const KindName = "flows"

// batch is how many pods one pass over the table serves at most. The cost of a pass depends on the
// table's length, not on the number of pods.
const batch = 4096

// Spec is the traffic of a pod.
type Spec struct {
	Addresses []netip.Addr `json:"addresses"`
}

// Kind returns KindName.
func (s *Spec) Kind() string { return KindName }

func (s *Spec) String() string {
	texts := make([]string, len(s.Addresses))
	for i, a := range s.Addresses {
		texts[i] = a.String()
	}
	return "conntrack of " + strings.Join(texts, ", ")
}

// Table deletes what the kernel remembers of the traffic of some addresses.
type Table interface {
	// ForgetUnless leaves alone what only addresses have that are spared when it comes to them.
	ForgetUnless(addrs []netip.Addr, spared func(netip.Addr) bool) error
}

// Routes tells which of some addresses have a route of their own.
type Routes interface {
	Reached([]netip.Addr) []netip.Addr
}

// Kind returns the kind, which acts on a table.
func Kind(t Table, r Routes) hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return &Spec{} },
		Acquire: func(context.Context, hold.Hold) error { return nil },
		Verify:  hold.VerifyEach(func(context.Context, hold.Hold) error { return nil }),
		Release: func(_ context.Context, hs []hold.Hold) []error { return release(t, r, hs) },
		Batch:   batch,
		Lazy:    true,
	}
}

// asks is how long Others goes by what the node has said of an address.
const asks = 50 * time.Millisecond

// Others returns a function that reports whether somebody else has an address by now. One goroutine at a time
// may call it.
func Others(r Routes) func(netip.Addr) bool {
	type answer struct {
		at     time.Time
		others bool
	}
	said := map[netip.Addr]answer{}
	return func(a netip.Addr) bool {
		last, ok := said[a]
		if !ok || time.Since(last.at) > asks {
			last = answer{time.Now(), len(r.Reached([]netip.Addr{a})) > 0}
			said[a] = last
		}
		return last.others
	}
}

func release(t Table, r Routes, hs []hold.Hold) []error {
	errs := make([]error, len(hs))
	var addrs []netip.Addr
	for i, h := range hs {
		s, ok := h.Spec.(*Spec)
		if !ok {
			errs[i] = fmt.Errorf("a hold of kind %s has no flows", h.Spec.Kind())
			continue
		}
		addrs = append(addrs, s.Addresses...)
	}
	others := r.Reached(addrs)
	addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool { return slices.Contains(others, a) })
	err := t.ForgetUnless(addrs, Others(r)) // a pass may have to wait for its turn
	for i := range errs {
		if errs[i] == nil {
			errs[i] = err
		}
	}
	return errs
}
