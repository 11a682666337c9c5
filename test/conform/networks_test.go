package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berth-net/berth/conform"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// delegating are lists by which Berth has other plugins make networks of a pod: its first one, or its second one. The page has no columns
// of them.
var delegating = []string{"networks", "behind"}

// ofNetworks are the checks of such lists: what a pod's end leaves, and what depends on the plugins of all networks. parallel/pods and
// leak/churn take minutes, as 2 plugins run at once for each processor.
const ofNetworks = `^(basic|add|del|check)/|^gc/(nothing|unlisted)@?|^leak/(add-del|del-only|netns-gone|no-netns|kill-add|kill-del|daemon|reboot)`

// Berth conforms, too, when other plugins make networks of its pods.
func TestNetworksConform(t *testing.T) {
	if testing.Short() {
		t.Skip("takes five minutes")
	}
	bin, peers := programs.Own(t), programs.Peers(t, "ptp", "macvlan", "host-local", "tuning")
	all := t.TempDir() // CNI_PATH, and the folder of berth-runner
	for _, path := range []string{bin + "/berth", bin + "/berthd", bin + "/berth-cni", bin + "/berth-runner", peers + "/ptp", peers + "/macvlan", peers + "/host-local", peers + "/tuning"} {
		nettest.Must(t, os.Symlink(path, filepath.Join(all, filepath.Base(path))))
	}
	for _, name := range delegating {
		s := subject{name: name, ours: true, hooks: "networks", stateDirs: slices.Concat([]string{"/var/lib/berth", "/run/berth"}, hostLocal)}
		r, err := judge(t.Context(), folders{bin: all, lists: "."}, s, ofNetworks)
		if err != nil {
			t.Fatalf("judging %s: %v", name, err)
		}
		passed := 0
		for _, one := range r.Results {
			switch {
			case one.Outcome.Bad():
				t.Errorf("%s: %s: %s: %v\n%s", name, one.Check, one.Outcome, one.Seen, one.Repeat)
			case one.Outcome == conform.Pass:
				passed++
			}
		}
		if passed < 30 {
			t.Errorf("%s: only %d checks pass", name, passed)
		}
	}
}
