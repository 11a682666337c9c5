package link_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// deaf deletes, in a pod, the policy rules by which the pod receives packets to its own addresses;
// hearing adds the rules again.
//
//	ip rule del pref 0; ip -6 rule del pref 0
func deaf(t *testing.T, pod *ns.Netns) (hearing func()) {
	t.Helper()
	var lost []netlink.Rule
	must(t, pod.Do(func() error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			rules := nettest.List(t, func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
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

// If a pod does not receive packets to its addresses, only the pod's own ADD waits.
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
	must(t, f.kind.Acquire(t.Context(), h)) // Acquire repairs the link, and does not wait either
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

// The path of a pod's network namespace goes after Acquire has made the link, and before Settle waits
// for the pod's addresses. Then the namespace goes, too. The kind says that the pod is gone. An ADD has
// an error number of its own for that.
func TestSettleWithoutPod(t *testing.T) {
	f := newFixture(t)
	pod := nettest.Pod(t)
	ref := pod.Ref()
	ref.Path = filepath.Join(t.TempDir(), "pod")
	must(t, os.WriteFile(ref.Path, nil, 0o600))
	must(t, unix.Mount(pod.Ref().Path, ref.Path, "", unix.MS_BIND, ""))
	defer func() { _ = unix.Unmount(ref.Path, unix.MNT_DETACH) }()
	h := f.hold(ref, both)
	deaf(t, pod)
	must(t, f.kind.Acquire(t.Context(), h))
	must(t, unix.Unmount(ref.Path, unix.MNT_DETACH))
	for _, what := range []string{"an empty file", "nothing"} {
		if err := f.kind.Settle(t.Context(), h); !errors.Is(err, hold.ErrHomeless) {
			t.Errorf("%s is at the path: Settle says %v", what, err)
		}
		must(t, f.links.Restamp(spec(h), 7)) // the link is still there
		_ = os.Remove(ref.Path)
	}
	f.release(h)
	if err := f.links.Restamp(spec(h), 7); !errors.Is(err, hold.ErrHomeless) {
		t.Errorf("there is neither pod nor link: Restamp says %v", err)
	}
}
