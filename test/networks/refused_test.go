package networks

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// A network that would ask for the pod's networks again, and one whose plugin is a path, are refused before any plugin is executed; one
// that comes back to Berth under another name is refused when it comes back. The error has a number, and nothing of the networks before
// it stays.
func TestCycles(t *testing.T) {
	n := newNode(t)
	must(t, os.Symlink(filepath.Join(n.bin, "berth-cni"), filepath.Join(n.plugins, "linked")))
	program, err := os.ReadFile(filepath.Join(n.bin, "berth-cni"))
	must(t, err, os.WriteFile(filepath.Join(n.plugins, "copied"), program, 0o755))
	first := `{"cniVersion":"1.0.0","name":"one","type":"ptp",` + n.local("10.1.0.0/24") + `}`
	itself := func(kind, keys string) string {
		return fmt.Sprintf(`{"cniVersion":"1.0.0","name":"two","type":%q,"root":%q%s}`, kind, n.Root, keys)
	}
	again := fmt.Sprintf(`,"binDir":%q,"delegates":[%s]`, n.plugins, first)
	for i, c := range []struct {
		network string
		code    uint
		says    string
	}{
		{itself("multus", ""), 7, `type is "multus"`},
		{itself("berth-cni", again), 2, "delegates"},
		{itself("../"+filepath.Base(n.plugins)+"/linked", again), 7, "without a path"},
		{`{"cniVersion":"1.0.0","name":"two","type":"bridge","bridge":"br9","ipam":{"type":"../linked"}}`, 7, "without a path"},
		{itself("linked", again), 101, "net1 in "},
		{itself("copied", again), 101, "net1 in "},
		{itself("linked", ""), 101, "net1 in "},
		{fmt.Sprintf(`{"cniVersion":"1.0.0","name":"two","type":"ptp","root":%q,"ipam":{"type":"linked"}}`, n.Root), 101, "net1 in "},
	} {
		pod := nettest.Pod(t)
		container := fmt.Sprintf("c%d", i)
		_, err := n.Exec("ADD", container, pod.Ref().Path, n.keys(first, c.network)...)
		programs.WantError(t, err, c.code, c.says)
		n.nothingLeft()
		if got := n.links(pod); len(got) > 0 {
			t.Errorf("%s: the pod has %v", c.network, got)
		}
		_, err = n.Exec("DEL", container, pod.Ref().Path, n.keys(first, c.network)...)
		must(t, err)
	}
}
