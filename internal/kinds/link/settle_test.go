package link_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// deaf deletes, in a pod, the policy rules by which it receives packets to its own
// addresses; hearing adds them again.
//
//	ip rule del pref 0; ip -6 rule del pref 0
func deaf(t *testing.T, pod *ns.Netns) (hearing func()) {
	t.Helper()
	var lost []netlink.Rule
	must(t, pod.Do(func() error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			rules, err := netlink.RuleList(family)
			must(t, err)
			for _, r := range rules {
				if r.Priority <= 0 {
					r.Family, r.Priority = family, 0
					must(t, netlink.RuleDel(&r))
					lost = append(lost, r)
				}
			}
		}
		return nil
	}))
	if len(lost) != 2 {
		t.Fatalf("rules of priority 0: %v", lost)
	}
	return func() {
		must(t, pod.Do(func() error {
			for _, r := range lost {
				must(t, netlink.RuleAdd(&r))
			}
			return nil
		}))
	}
}

// If a pod does not receive packets to its addresses, only its own ADD waits for it.
func TestSettle(t *testing.T) {
	f := newFixture(t)
	pod := nettest.Pod(t)
	h := f.hold(pod.Ref(), both)
	must(t, f.kind.Settle(t.Context(), h)) // there is no link: Settle has nothing to do
	hearing := deaf(t, pod)
	start := time.Now()
	must(t, f.kind.Acquire(t.Context(), h))
	defer f.release(h)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("Acquire waited for the pod, for %v", took)
	}
	must(t, f.kind.Acquire(t.Context(), h)) // repairs the link, and does not wait either
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := f.kind.Settle(ctx, h); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "does not receive yet") {
		t.Errorf("Settle says %v", err)
	}
	hearing()
	must(t, f.kind.Settle(t.Context(), h))
	f.receives(h)
	deaf(t, pod)
	must(t, f.kind.Settle(t.Context(), h)) // Settle has seen the addresses receive, and does not look again
	must(t, f.kind.Acquire(t.Context(), h))
	must(t, f.kind.Settle(t.Context(), h))
}
