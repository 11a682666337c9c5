package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// In mode chained the pod's link is another plugin's. DEL queues the deletion, sets no link down, and succeeds, also where the plugin could
// not see a link of Berth's: otherwise the runtime would have to repeat DEL until the agent is back.
func TestAwayChained(t *testing.T) {
	here, err := ns.Self()
	must(t, err)
	defer here.Close()
	for mode, want := range map[string]uint{"routed": 11, "chained": 0} {
		t.Run(mode, func(t *testing.T) {
			a := newAway(t, t.TempDir())
			a.remove(ownLink)
			a.remove(otherLink)
			a.links = []string{alien}
			must(a, os.MkdirAll(root.Dir(a.root).Run(), 0o700))
			elsewhere := fmt.Sprintf("%s/%d/%d/0\nabcd234567\n", bootID(t), here.Ref().Dev, here.Ref().Ino+1)
			must(a, os.WriteFile(root.Dir(a.root).Epoch(), []byte(elsewhere), 0o600))
			env := podEnv("DEL")
			env["CNI_NETNS"] = nettest.Pod(t).Ref().Path
			out, code := execute(t, env, strings.NewReader(conf(a.root, fmt.Sprintf(`"mode":%q,`, mode)+prevResult(alien))))
			if code != 0 != (want != 0) || want != 0 && !strings.Contains(out, fmt.Sprintf(`"code":%d`, want)) {
				t.Errorf("code %d: %s", code, out)
			}
			if got := a.down(); got != "" {
				t.Errorf("down are %q", got)
			}
			if r := a.one(); r.Link != "" || r.Cut || r.Again != (want != 0) {
				t.Errorf("queued is %+v", r)
			}
		})
	}
}
