package conform

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	installed "github.com/berth-net/berth/test/programs"
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
	{"file-left", []string{"leak/add-del"}},
	{"masquerade-left", []string{"leak/add-del"}},
	{"host-port-left", []string{"leak/add-del"}},
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
	{"not-parallel", []string{"parallel/pods"}},
	{"broken-at-once", []string{"parallel/pods"}},
	{"hang-at-once", []string{"parallel/pods"}},
	{"id-cut", []string{"limits/container-id"}},
	{"ifname-not-in-key", []string{"parallel/same-pod"}},
}

// The checks that are about a fault find the fault, and no other check does.
func TestFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("takes four minutes")
	}
	for _, f := range faults {
		t.Run(f.fault, func(t *testing.T) {
			if f.fault == "masquerade-left" {
				installed.Need(t, "iptables") // the planted plugin runs it
			}
			t.Parallel()
			var caught []string
			var why strings.Builder
			for _, r := range judgedBy(t, planted(f.fault), "1.1.0", checksFor(f.caught)).Results {
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

// checksFor returns all checks but the slow ones, and the slow ones that should catch the
// fault.
func checksFor(caught []string) string {
	var names []string
	for _, c := range Checks() {
		if !slow.MatchString(c.Name) || slices.Contains(caught, c.Name) {
			names = append(names, regexp.QuoteMeta(c.Name))
		}
	}
	return "^(" + strings.Join(names, "|") + ")(@|$)"
}
