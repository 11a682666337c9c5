package conform

import (
	"flag"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/conform/internal/trial"
)

// faults are the faults of the planted plugin, with the checks that find each.
var faults = []struct {
	fault  string
	caught []string
}{
	{"version-empty", []string{"version/answer"}},
	{"wrong-version", []string{"add/result"}},
	{"log-on-stdout", []string{"basic/attach"}},
	{"result-without-interfaces", []string{"add/result"}},
	{"result-without-sandbox", []string{"add/result"}},
	{"result-wrong-index", []string{"add/result"}},
	{"result-other-address", []string{"add/result"}},
	{"ifname-ignored", []string{"add/result"}},
	{"existing-interface-taken", []string{"add/existing-interface"}},
	{"residue-after-failed-add", []string{"add/failed-undone"}},
	{"error-without-json", []string{"add/error-form"}},
	{"error-without-code", []string{"add/error-form"}},
	{"error-exits-zero", []string{"add/error-form"}},
	{"address-not-freed", []string{"leak/add-del"}},
	{"link-left", []string{"leak/add-del"}},
	{"rule-left", []string{"leak/add-del"}},
	{"route-left", []string{"leak/add-del"}},
	{"neighbour-left", []string{"leak/add-del"}},
	{"host-address-left", []string{"leak/add-del"}},
	{"second-link-left", []string{"leak/add-del"}},
	{"file-left-until-gc", []string{"leak/add-del"}},
	{"file-left", []string{"leak/add-del"}},
	{"masquerade-left", []string{"leak/add-del"}},
	{"host-port-left", []string{"leak/add-del"}},
	{"mtu-changed", []string{"leak/add-del"}},
	{"queue-changed", []string{"leak/add-del"}},
	{"group-changed", []string{"leak/add-del"}},
	{"alias-changed", []string{"leak/add-del"}},
	{"altname-left", []string{"leak/add-del"}},
	{"promisc-changed", []string{"leak/add-del"}},
	{"qdisc-changed", []string{"leak/add-del"}},
	{"uplink-enslaved", []string{"leak/add-del"}},
	{"link-sysctl-changed", []string{"leak/add-del"}},
	{"neigh-sysctl-changed", []string{"leak/add-del"}},
	{"ports-reserved", []string{"leak/add-del"}},
	{"run-file-left", []string{"leak/add-del"}},
	{"etc-file-left", []string{"leak/add-del"}},
	{"shm-file-left", []string{"leak/add-del"}},
	{"log-file-left", []string{"leak/add-del"}},
	{"lib-file-left", []string{"leak/add-del"}},
	{"tmp-file-left", []string{"leak/add-del"}},
	{"mount-left", []string{"leak/add-del"}},
	{"socket-left", []string{"leak/add-del"}},
	{"process-left", []string{"leak/add-del"}},
	{"pod-process-left", []string{"leak/add-del"}},
	{"shared-memory-left", []string{"leak/add-del"}},
	{"semaphore-left", []string{"leak/add-del"}},
	{"queue-left", []string{"leak/add-del"}},
	{"nexthop-left", []string{"leak/add-del"}},
	{"address-label-left", []string{"leak/add-del"}},
	{"mptcp-left", []string{"leak/add-del"}},
	{"xfrm-policy-left", []string{"leak/add-del"}},
	{"fdb-left", []string{"leak/add-del"}},
	{"multicast-left", []string{"leak/add-del"}},
	{"tc-filter-left", []string{"leak/add-del"}},
	{"tc-class-left", []string{"leak/add-del"}},
	{"tcx-left", []string{"leak/add-del"}},
	{"pin-left", []string{"leak/add-del"}},
	{"xdp-changed", []string{"leak/add-del"}},
	{"second-del-fails", []string{"del/idempotent"}},
	{"prev-result-needed", []string{"del/without-prev-result"}},
	{"del-needs-netns", []string{"del/without-netns"}},
	{"del-needs-living-netns", []string{"del/netns-gone"}},
	{"hang", []string{"del/netns-gone"}},
	{"missing-link-ends-del", []string{"del/netns-gone"}},
	{"del-by-address", []string{"del/spares-successor"}},
	{"lease-first", []string{"leak/kill-del"}},
	{"kill-unsafe", []string{"leak/kill-add"}},
	{"check-always-passes", []string{"check/link-gone"}},
	{"check-always-fails", []string{"check/well"}},
	{"check-ignores-link", []string{"check/link-gone"}},
	{"check-ignores-address", []string{"check/address-gone"}},
	{"check-ignores-route", []string{"check/route-gone"}},
	{"status-fails", []string{"status/available"}},
	{"status-ignores-full", []string{"status/exhausted"}},
	{"gc-removes-everything", []string{"gc/spares-listed"}},
	{"gc-ignores", []string{"gc/unlisted"}},
	{"gc-takes-other-networks", []string{"gc/other-network"}},
	{"rate-ignored", []string{"rates/kept"}},
	{"rate-too-high", []string{"rates/kept"}},
	{"rate-too-low", []string{"rates/kept"}},
	{"port-of-all-addresses", []string{"ports/reached"}},
	{"port-taken", []string{"ports/conflict"}},
	{"port-catches-others", []string{"ports/others"}},
	{"port-flows-left", []string{"leak/conntrack"}},
	{"addresses-used-up", []string{"leak/churn"}},
	{"addresses-lost-without-netns", []string{"leak/churn-bare"}},
	{"id-kept-without-netns", []string{"leak/no-netns"}},
	{"check-leaves-file", []string{"leak/questions"}},
	{"status-leaves-file", []string{"leak/questions"}},
	{"version-leaves-file", []string{"leak/questions"}},
	{"not-parallel", []string{"parallel/pods"}},
	{"broken-at-once", []string{"parallel/pods"}},
	{"hang-at-once", []string{"parallel/pods"}},
	{"id-cut", []string{"limits/container-id"}},
	{"ifname-not-in-key", []string{"parallel/same-pod"}},
	{"version-needs-path", []string{"version/bare"}},
	{"del-needs-no-ifname", []string{"errors/environment-later"}},
	{"check-ignores-prev-result", []string{"check/prev-result"}},
	{"check-prints", []string{"check/silent"}},
	{"gc-prints", []string{"gc/silent"}},
	{"gc-reads-old-key", []string{"gc/key"}},
	{"args-refused", []string{"keys/args"}},
	{"dns-reordered", []string{"keys/dns"}},
	{"route-listed", []string{"add/routes"}},
	{"mtu-lied", []string{"add/details"}},
	{"priority-lied", []string{"add/details"}},
	{"default-route-insisted", []string{"add/default-route"}},
	{"delegate-without-args", []string{"add/delegated"}},
	{"delegate-stderr-lost", []string{"add/delegated-stderr"}},
	{"delegate-not-undone", []string{"add/delegated-failed"}},
	{"ipam-with-interfaces", []string{"add/delegated-result"}},
	{"ipam-address-ignored", []string{"add/delegated-applied"}},
	{"check-not-delegated", []string{"check/delegated"}},
	{"del-error-swallowed", []string{"del/delegated"}},
}

// delegating are the faults of a plugin that delegates to an IPAM plugin, and of that.
var delegating = []string{
	"delegate-without-args", "delegate-stderr-lost", "delegate-not-undone", "ipam-with-interfaces", "ipam-address-ignored", "check-not-delegated", "del-error-swallowed",
}

// byCommand are the faults for which the planted plugin runs commands of iproute2.
var byCommand = []string{
	"nexthop-left", "address-label-left", "mptcp-left", "xfrm-policy-left", "fdb-left", "multicast-left", "tc-filter-left", "tc-class-left",
}

// byRoot are the faults for which the planted plugin needs the machine's root.
var byRoot = []string{"tcx-left", "pin-left", "xdp-changed"}

var everyFlag = flag.Bool("every", false, "hold each planted fault against every check, as make faults does")

// The checks that are about a fault find the fault, and no other check does: without -every, none of an eighth of the others,
// another eighth for the next fault.
func TestFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	for i, f := range faults {
		t.Run(f.fault, func(t *testing.T) {
			if f.fault == "masquerade-left" {
				trial.Need(t, "iptables") // the planted plugin runs it
			}
			if slices.Contains(byCommand, f.fault) {
				trial.Need(t, "ip", "tc", "bridge")
			}
			if slices.Contains(byRoot, f.fault) {
				trial.Root(t, "a user namespace has no eBPF")
			}
			t.Parallel()
			var caught []string
			var why strings.Builder
			for _, r := range judgedBy(t, planted(f.fault), "1.1.0", checksFor(f.caught, leftOut(i)...)).Results {
				name, _, _ := strings.Cut(r.Check, "@")
				if r.Outcome.Bad() || slices.Contains(f.caught, name) { // which should be bad
					why.WriteString("\n" + r.Check + ": " + string(r.Outcome) + ": " + strings.Join(r.Seen, "\n"))
				}
				if !r.Outcome.Bad() {
					continue
				}
				if caught = append(caught, name); r.Repeat == "" {
					t.Errorf("%s is bad, and how to repeat it is not said", r.Check)
				}
			}
			if caught = slices.Compact(caught); !slices.Equal(caught, f.caught) {
				t.Errorf("%s is caught by %q, not by %q:%s", f.fault, caught, f.caught, why.String())
			}
		})
	}
}

// slow are the checks that attach many pods. They run only for the faults that they should
// catch, and for the plugin without a fault.
var slow = regexp.MustCompile(`^leak/(kill|churn|reboot|daemon)|^parallel/pods$|^status/exhausted$`)

// leftOut returns the checks that need not run for a fault, by the number of the fault.
func leftOut(fault int) (left []string) {
	for i, c := range Checks() {
		if !*everyFlag && (fault+i)%8 != 0 {
			left = append(left, c.Name)
		}
	}
	return left
}

// checksFor returns all checks but the slow ones and those of left, and of these the ones that should catch the fault.
func checksFor(caught []string, left ...string) string {
	var names []string
	for _, c := range Checks() {
		if !slow.MatchString(c.Name) && !slices.Contains(left, c.Name) || slices.Contains(caught, c.Name) {
			names = append(names, regexp.QuoteMeta(c.Name))
		}
	}
	return "^(" + strings.Join(names, "|") + ")(@|$)"
}
