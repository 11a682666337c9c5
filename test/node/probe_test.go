package node

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// berth runs the program, and returns what it prints and its exit code.
func (a *agent) berth(args ...string) (out string, code int) {
	a.t.Helper()
	cmd := exec.Command(filepath.Join(a.bin, "berth"), append([]string{"--root", string(a.root)}, args...)...)
	raw, err := cmd.CombinedOutput()
	if _, ended := err.(*exec.ExitError); err != nil && !ended {
		a.t.Fatal(err)
	}
	return string(raw), cmd.ProcessState.ExitCode()
}

// `berth check --probe` reaches a pod of a real agent, and from there the node, another pod and,
// by masquerade, a machine outside. The command names somebody else's table that drops what pods send,
// while an audit finds nothing. The command leaves nothing behind.
func TestProbe(t *testing.T) {
	a := startSeldom(t)
	hasAddresses(t)
	outside(t)
	pods, got := a.podsOf(2)
	for _, pod := range pods {
		nettest.Run(t, pod, "ip link set lo up")
	}
	before := seen(t).Only("nft").String() + nettest.Snapshot(t, pods[0]).Deliberate().String()
	probe := func(more ...string) (string, int) {
		return a.berth(append([]string{"check", "--probe", got[0].addrs[0].String()}, more...)...)
	}
	out, code := probe()
	for _, row := range []string{"node to pod", "pod to itself", "pod to node", "pod to pod c1", "pod out"} {
		const want = 2 // one in each family
		if n := len(regexp.MustCompile(`(?m)^ok +`+row+` +echo \S+ to \S+ +reply in `).FindAllString(out, -1)); n != want || code != 0 {
			t.Errorf("exit code %d, and %d answers of %s, not %d:\n%s", code, n, row, want, out)
		}
	}
	if after := seen(t).Only("nft").String() + nettest.Snapshot(t, pods[0]).Deliberate().String(); after != before {
		t.Errorf("it leaves something behind: before\n%s\nafter\n%s", before, after)
	}

	nft(t, "table inet docker { chain FORWARD { type filter hook forward priority 0; policy drop; } ; }")
	t.Cleanup(func() { nft(t, "delete table inet docker") })
	a.wantClean()
	out, code = probe("--wait", "200ms", "-o", "json")
	says := "the packet was dropped by the policy of chain inet docker FORWARD { type filter hook forward priority 0; policy drop; }"
	if n := strings.Count(out, says); code != 1 || n != 4 || strings.Count(out, `"verdict": "ok"`) != 6 {
		t.Errorf("exit code %d; %d times %s:\n%s", code, n, says, out)
	}
}
