package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/conform"
	"github.com/berth-net/berth/internal/nettest"
)

// The page says how each list fares, which checks are bad, and explains these with their recipe.
func TestPage(t *testing.T) {
	report := func(results ...conform.Result) *conform.Report {
		return &conform.Report{Suite: "0.9.0", Kernel: "6.0", Results: append([]conform.Result{{Check: "version/newer", Outcome: conform.Pass}}, results...)}
	}
	attach := conform.Result{Check: "basic/attach", Outcome: conform.Pass}
	judged := []judgement{
		{subject{name: "berth", group: ofBerth, ours: true}, report(attach, conform.Result{Check: "version/echo@1.0.0", Outcome: conform.Pass})},
		{subject{name: "ptp", group: ofOthers, what: "a pair"}, report(attach,
			conform.Result{Check: "version/echo@1.0.0", Outcome: conform.Fail, Level: conform.Must, Seen: []string{"first", "the answer is in 1.1.0"}},
			conform.Result{Check: "leak/netns-gone", Outcome: conform.Leak, Level: conform.Should},
			conform.Result{Check: "leak/no-netns", Outcome: conform.Leak, Level: conform.Should},
			conform.Result{Check: "leak/kill-del", Outcome: conform.Unsupported, Needed: "leak/netns-gone"},
		)},
		{subject{name: "macvlan", group: ofOthers}, report(attach, conform.Result{Check: "version/echo@1.0.0", Outcome: conform.Flaky, Level: conform.Must},
			conform.Result{Check: "leak/netns-gone", Outcome: conform.Unsupported, Needed: "leak/add-del"},
			conform.Result{Check: "leak/no-netns", Outcome: conform.Unsupported})},
		{subject{name: "vlan", group: ofOthers}, report(conform.Result{Check: "version/echo@1.0.0", Outcome: conform.Fail}, conform.Result{Check: "basic/attach", Outcome: conform.Unsupported, Seen: []string{"no vlan here"}})},
	}
	var text strings.Builder
	nettest.Must(t, page(&text, []string{"ours 1", "theirs 2"}, judged, explain(judged)))
	for _, want := range []string{
		"flannel's plugin. It is of version 0.9.0 of the suite, with 6 checks; ours 1; theirs 2; Linux 6.0, ",
		"| ptp | [a pair](../test/conform/lists/ptp.conflist) | 2 | 1 | 2 | 0 | 0 | 1 | [masquerade-left](#masquerade-left) |\n",
		"| vlan | [](../test/conform/lists/vlan.conflist) | | | | | | | unsupported: see below |\n",
		"\n- vlan: no vlan here\n\nNot judged in this run: berth-macvlan, berth-bridge, ",
		"\n**Berth**: no check is bad.\n",
		"| other interfaces | ptp | macvlan |\n|---|:-:|:-:|\n",
		"| `version/echo@1.0.0` | **must** | **must**, flaky |\n",
		"| `leak/netns-gone` | **should**, leak | (-) |\n| `leak/no-netns` | **should**, leak | - |\n",
		"Bad with none of the lists: `basic/attach`, `version/newer`, `leak/kill-del`.\n",
		"\n### all plugins\n\n<a id=\"version-echo\"></a>\n\n#### the answer to VERSION is always in the plugin's newest version (must)\n\nskel of",
		"\n\nSeen by `version/echo@1.0.0` with ptp, macvlan. Upstream: no issue is known.\n\n```sh\ncni VERSION bridge",
		"`version/echo@1.0.0` of ptp says:\n\n```\nfirst\nthe answer is in 1.1.0\n```\n",
		"Seen by `leak/netns-gone`, `leak/no-netns` with ptp. Upstream: plugins#810 is",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(text.String())
	}
}

// docs/CONFORMANCE.md is of this suite: of its version, and with all of its checks.
func TestPageIsOfThisSuite(t *testing.T) {
	raw, err := os.ReadFile("../../docs/CONFORMANCE.md")
	nettest.Must(t, err)
	if all := stale(string(raw)); len(all) > 0 {
		t.Errorf("docs/CONFORMANCE.md is not of this suite, and make conform has to write it anew:\n%s", strings.Join(all, "\n"))
	}
}

// checkName matches the name of a check in the page, which may have a version.
var checkName = regexp.MustCompile("`([a-z]+/[a-z-]+)(@[0-9.]+)?`")

// stale returns how a page differs from what the suite would write: in its version, and in the names of its checks.
func stale(page string) (all []string) {
	var here []string
	for _, c := range conform.Checks() {
		here = append(here, c.Name)
	}
	if want := fmt.Sprintf("version %s of the suite, with %d checks;", conform.Version, len(here)); !strings.Contains(page, want) {
		all = append(all, fmt.Sprintf("it does not say %q", want))
	}
	_, page, _ = strings.Cut(page, "\n## The checks\n")
	page, _, _ = strings.Cut(page, "\n## The findings\n")
	there := map[string]bool{}
	for _, match := range checkName.FindAllStringSubmatch(page, -1) {
		there[match[1]] = true
		if !slices.Contains(here, match[1]) {
			all = append(all, "the suite has no check "+match[1]+" any more")
		}
	}
	for _, name := range here {
		if !there[name] {
			all = append(all, "it lacks the check "+name)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// A page of another version, or with other checks, is stale.
func TestStale(t *testing.T) {
	var names []string
	for _, c := range conform.Checks() {
		names = append(names, "`"+c.Name+"@1.0.0`")
	}
	page := fmt.Sprintf("version %s of the suite, with %d checks; x\n## The checks\n%s\n## The findings\n`old/finding`", conform.Version, len(names), strings.Join(names, ", "))
	if got := stale(page); got != nil {
		t.Errorf("the page of this suite is stale: %q", got)
	}
	other := strings.NewReplacer("version ", "version 9", "`basic/attach@1.0.0`", "`basic/detach`").Replace(page)
	want := []string{"it does not say", "it lacks the check basic/attach", "the suite has no check basic/detach any more"}
	got := stale(other)
	if len(got) != len(want) {
		t.Fatalf("%q", got)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("%q, not %q", got[i], want[i])
		}
	}
}
