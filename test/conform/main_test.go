package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/conform"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) { programs.Main(m) }

// needed are checks of capabilities that Berth has. The suite does not judge a list by these checks if
// the list lacks the capabilities.
var needed = []string{"rates/kept", "ports/reached", "ports/conflict", "ports/others", "leak/conntrack"}

// Berth has no bad result in mode routed.
func TestBerthConforms(t *testing.T) {
	run, passed := "", 60
	if testing.Short() {
		run, passed = ofModes+"|^("+strings.Join(needed, "|")+")", 40
	}
	r := conforms(t, programs.Own(t), ours(t, "berth"), run, passed)
	for _, name := range needed {
		i := slices.IndexFunc(r.Results, func(one conform.Result) bool { return one.Check == name })
		if i < 0 {
			t.Errorf("there is no check %s", name)
		} else if one := r.Results[i]; one.Outcome == conform.Unsupported {
			t.Errorf("%s is not judged: %v", name, one.Seen)
		}
	}
}

// ofModes are the checks of Berth's other modes here, and ofNetworks those of lists with other plugins, too: what a pod's end leaves, and what depends on the
// plugins of all networks. `make conform` makes all checks. leak/churn alone takes minutes with delegates, as 2 plugins run at once for each processor.
const (
	ofModes    = `^(basic|add|del|check)/|^leak/(add-del|netns-gone|no-netns)`
	ofNetworks = ofModes + `|^parallel/pods|^gc/(nothing|unlisted)@?|^leak/(del-only|kill-add|kill-del|daemon|reboot)`
)

// Berth conforms, too, in its other modes, and when other plugins make networks of its pods.
func TestNetworksConform(t *testing.T) {
	if testing.Short() {
		t.Skip("takes five minutes")
	}
	in := folders{bin: programs.Own(t), peers: programs.Peers(t, "ptp", "macvlan", "host-local", "tuning")}
	all, err := in.together()
	nettest.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(all) })
	for _, one := range []struct {
		list, run string
		passed    int
	}{
		{"networks", ofNetworks, 30}, {"behind", ofNetworks, 30},
		{"berth-macvlan", ofModes, 20}, {"berth-bridge", ofModes, 20},
	} {
		t.Run(one.list, func(t *testing.T) {
			t.Parallel()
			conforms(t, all, ours(t, one.list), one.run, one.passed)
		})
	}
}

// ours returns a subject of Berth's.
func ours(t *testing.T, name string) subject {
	t.Helper()
	i := slices.IndexFunc(subjects, func(s subject) bool { return s.ours && s.name == name })
	if i < 0 {
		t.Fatalf("Berth has no list %s", name)
	}
	return subjects[i]
}

// conforms judges a subject, whose programs and berth are in a folder, and wants no bad result and a number of checks that pass.
func conforms(t *testing.T, programs string, s subject, run string, passed int) *conform.Report {
	t.Helper()
	r, _, err := judge(t.Context(), folders{bin: programs, lists: "."}, programs, s, run)
	if err != nil {
		t.Fatalf("judging %s: %v", s.name, err)
	}
	for _, one := range r.Results {
		if bad(one.Outcome) {
			t.Errorf("%s: %s: %s: %v\n%s", s.name, one.Check, one.Outcome, one.Seen, one.Repeat)
		}
	}
	if n := r.Count(conform.Pass); n < passed {
		t.Errorf("%s: only %d checks pass", s.name, n)
	}
	return r
}

// Every subject has a list, a group of the page, and hooks that are there.
func TestSubjects(t *testing.T) {
	lists, err := filepath.Glob("lists/*.conflist")
	nettest.Must(t, err)
	if len(lists) != len(subjects) {
		t.Errorf("there are %d lists, and %d subjects", len(lists), len(subjects))
	}
	for _, s := range subjects {
		if !slices.Contains(groups, s.group) {
			t.Errorf("%s: the page has no table of the group %q", s.name, s.group)
		}
		paths := []string{"lists/" + s.name + ".conflist"}
		if s.hooks != "" {
			paths = append(paths, s.hooks+"/start", s.hooks+"/stop")
		}
		for _, p := range paths {
			if _, err := os.Stat(p); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
		}
	}
}

// In a list of others' plugins, too, what is bad because of Berth counts.
func TestOfBerthsOwn(t *testing.T) {
	r := &conform.Report{Results: []conform.Result{
		{Check: "del/idempotent", Outcome: conform.Pass},
		{Check: "gc/delegated", Outcome: conform.Fail, Seen: []string{"GC does not reach host-local: ptp GC: success"}},
		{Check: "gc/nothing", Outcome: conform.Fail, Seen: []string{"GC fails: berth-cni GC: error 999"}},
	}}
	if got := ofBerthsOwn(judgement{subject{ours: true}, r}); !slices.Equal(got, []string{"gc/delegated", "gc/nothing"}) {
		t.Errorf("with a list of Berth's: %v", got)
	}
	if got := ofBerthsOwn(judgement{subject{}, r}); !slices.Equal(got, []string{"gc/nothing"}) {
		t.Errorf("with another list: %v", got)
	}
}
