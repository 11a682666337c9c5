package strangers

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// crio is a CRI-O as far as its library for networks makes one (test/peers/ocicni). Each call is a CRI-O that was started just now.
type crio struct{ program, conf, cache, bin string }

func newCRIO(t *testing.T, n *node) *crio {
	t.Helper()
	c := &crio{filepath.Join(programs.Peers(t, "ocicni"), "ocicni"), t.TempDir(), t.TempDir(), n.bin}
	// As deploy/10-berth.conflist has it: older runtimes take cniVersion, and others the newest of cniVersions that they know.
	list := strings.Replace(n.conflist("1.0.0", ""), `"cniVersion": "1.0.0"`, `"cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"]`, 1)
	must(t, os.WriteFile(filepath.Join(c.conf, "10-test.conflist"), []byte(list), 0o600))
	return c
}

func (c *crio) do(t *testing.T, verb string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(c.program, append([]string{c.conf, c.cache, c.bin, verb}, args...)...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("CRI-O's %s of %q: %v", verb, args, err)
	}
	return out
}

// add attaches a pod, and returns its addresses.
func (c *crio) add(t *testing.T, id, netns string) []netip.Addr {
	t.Helper()
	var r current.Result
	must(t, json.Unmarshal(c.do(t, "add", id, netns), &r))
	return addrsOf(&r)
}

// CRI-O is started, asks for the network's status until it is well, and then has garbage collected once: of all pods but those that it
// could restore. What else it has cached it deletes (libcni), and of what it knows nothing any more the plugin is told by GC alone.
// Pods that were restored go on, and are deleted as any pod.
func TestCRIOCollectsGarbage(t *testing.T) {
	n := newNode(t)
	kept, cached, forgotten := nettest.Pod(t), nettest.Pod(t), nettest.Pod(t)
	n.empty = nettest.Snapshot(t, nil)
	c := newCRIO(t, n)
	c.do(t, "status")
	keeps := c.add(t, "kept", kept.Ref().Path)
	goes := c.add(t, "cached", cached.Ref().Path)
	other := *c
	other.cache = t.TempDir() // of which CRI-O does not know
	lost := other.add(t, "forgotten", forgotten.Ref().Path)

	c.do(t, "status")
	c.do(t, "gc", "kept")
	for i := range keeps {
		nettest.Ping(t, nil, keeps[i])
		nettest.NoPing(t, nil, goes[i])
		nettest.NoPing(t, nil, lost[i])
	}
	n.agent.Audit(t)
	var all []api.Attachment
	out, err := n.agent.Berth(t.Context(), "attachments", "-o", "json")
	must(t, err, json.Unmarshal([]byte(out), &all))
	if len(all) != 1 || all[0].ContainerID != "kept" || all[0].Pod.UID != "uid-kept" {
		t.Errorf("attached are %+v, and not the pod that CRI-O has restored", all)
	}
	c.do(t, "gc", "kept") // it was started again
	nettest.Ping(t, nil, keeps[0])

	c.do(t, "del", "kept", kept.Ref().Path)
	c.do(t, "gc") // it has no pod
	n.agent.NothingLeft(t, n.empty)
}
