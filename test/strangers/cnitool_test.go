package strangers

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// cnitool runs cnitool for a test. cnitool keeps results below /var/lib/cni, and
// nowhere else: so the test gives cnitool a /var/lib of its own.
type cnitool struct {
	path, lib string
	env       []string
}

func newCnitool(t *testing.T, n *node, version string) *cnitool {
	t.Helper()
	peers := programs.Peers(t, "cnitool")
	confs := t.TempDir()
	must(t, os.WriteFile(filepath.Join(confs, "10-test.conflist"), []byte(n.conflist(version, "")), 0o600))
	return &cnitool{
		path: filepath.Join(peers, "cnitool"), lib: t.TempDir(),
		env: append(os.Environ(), "CNI_PATH="+n.bin, "NETCONFPATH="+confs),
	}
}

func (c *cnitool) run(verb, netns string) (string, error) {
	cmd := exec.Command("sh", "-c", `mount --bind "$1" /var/lib && shift && exec "$@"`, "sh", c.lib, c.path, verb, network, netns)
	cmd.Env = c.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// must runs a verb that has to succeed.
func (c *cnitool) must(t *testing.T, verb, netns string) string {
	t.Helper()
	out, err := c.run(verb, netns)
	if err != nil {
		t.Fatalf("cnitool %s: %v\n%s", verb, err, out)
	}
	return out
}

func TestCnitool(t *testing.T) {
	n := newNode(t)
	pod := nettest.Pod(t)
	n.empty = nettest.Snapshot(t, nil) // with the pod's mount
	tool, netns := newCnitool(t, n, "1.1.0"), pod.Ref().Path

	tool.must(t, "status", netns)
	for range 2 { // DEL leaves the pod as it was
		var result current.Result
		must(t, json.Unmarshal([]byte(tool.must(t, "add", netns)), &result))
		if len(result.IPs) != 2 {
			t.Fatalf("ADD answers %v, not one address of each family", result.IPs)
		}
		for _, ip := range result.IPs {
			reaches(t, ip.Address.String())
		}
		tool.must(t, "check", netns)
		tool.must(t, "del", netns)
		tool.must(t, "del", netns)
		n.agent.NothingLeft(t, n.empty)
	}

	// cnitool's GC has libcni delete what is in its cache, and then asks the plugin without any
	// list of valid attachments. The plugin deletes nothing by a list that is not there.
	tool.must(t, "add", netns)
	if out, err := tool.run("gc", netns); err == nil || !strings.Contains(out, "cni.dev/valid-attachments is missing") {
		t.Errorf("GC without a list: %v\n%s", err, out)
	}
	n.agent.NothingLeft(t, n.empty)
	tool.must(t, "del", netns)

	// CHECK names things that are missing in the pod, where nobody mends anything, and DEL
	// succeeds without them.
	tool.must(t, "add", netns)
	nettest.Run(t, pod, "ip address flush dev eth0")
	if out, err := tool.run("check", netns); err == nil {
		t.Errorf("CHECK of a pod without an address succeeds: %s", out)
	}
	tool.must(t, "del", netns)
	n.agent.NothingLeft(t, n.empty)

	// The link itself is the agent's, and the agent makes it again.
	tool.must(t, "add", netns)
	nettest.Run(t, pod, "ip link delete eth0")
	nettest.Eventually(t, "the link is made again", func() bool {
		_, err := tool.run("check", netns)
		return err == nil
	})
	tool.must(t, "del", netns)
	n.agent.NothingLeft(t, n.empty)
}

// An agent that cannot serve says so by STATUS, with the spec's number.
func TestCnitoolStatusWithoutAgent(t *testing.T) {
	n := newNode(t)
	tool := newCnitool(t, n, "1.1.0")
	must(t, n.agent.Stop())
	out, err := tool.run("status", "/proc/self/ns/net")
	if err == nil || !strings.Contains(out, "berthd") {
		t.Errorf("STATUS with no agent: %v\n%s", err, out)
	}
}
