package hostile

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// The agent does all that it does with the system calls and the socket families that
// its unit allows: it starts, serves each verb, mends, reloads, queues, restores and
// stops. Another call ends it here, where the unit lets the call fail, so that the
// test says which.
func TestUnitAllowsWhatTheAgentDoes(t *testing.T) {
	nettest.Need(t)
	programs.Need(t, "systemd-analyze")
	unit := readUnit(t)
	own := programs.Own(t)
	t.Setenv(envReal, filepath.Join(own, "berthd"))
	t.Setenv(envCalls, numbers(calls(t, unit["SystemCallFilter"])))
	t.Setenv(envFamilies, numbers(families(t, unit["RestrictAddressFamilies"])))
	for _, assignment := range unit["Environment"] {
		name, value, _ := strings.Cut(assignment, "=")
		t.Setenv(name, value)
	}
	bin := t.TempDir()
	self, err := os.Executable()
	must(t, err)
	for name, to := range map[string]string{confined: self, "berth": filepath.Join(own, "berth"), "berth-cni": filepath.Join(own, "berth-cni")} {
		must(t, os.Symlink(to, filepath.Join(bin, name)))
	}

	n := newNodeOf(t, bin, "sweepInterval: 1s\nmetrics: 127.0.0.1:9477\n"+strings.TrimPrefix(plain, "sweepInterval: 1h\n"))
	pods := n.adds("p", 5)
	if err := n.check(pods[0]); err != nil {
		t.Error(err)
	}
	n.del(pods[0])
	n.del(pods[1], wait)
	nettest.Delete(t, pods[2].at)
	nft(t, "flush ruleset")
	nettest.Run(t, nil, "ip link set "+pods[3].host+" down")
	nettest.Eventually(t, "the link to be mended", func() bool { return isUp(t, pods[3].host) })
	if _, err := n.Exec("GC", "", "", `"cni.dev/valid-attachments":[{"containerID":"p3","ifname":"eth0"},{"containerID":"p4","ifname":"eth0"}]`); err != nil {
		t.Error(err)
	}
	must(t, os.Remove(root.Dir(n.Root).Socket()))
	nettest.Eventually(t, "the socket to be there again", func() bool {
		_, err := os.Lstat(root.Dir(n.Root).Socket())
		return err == nil
	})
	for _, args := range [][]string{{"audit", "--pods"}, {"status"}, {"pools"}, {"owed"}, {"ledger"}} {
		if _, err := n.Berth(t.Context(), args...); err != nil {
			t.Error(err)
		}
	}
	if answer, err := http.Get("http://127.0.0.1:9477/metrics"); err != nil {
		t.Error(err)
	} else {
		answer.Body.Close()
	}
	if err := n.Signal(unix.SIGHUP); err != nil {
		t.Error(err)
	}
	nettest.Eventually(t, "the configuration to be read", func() bool {
		raw, err := os.ReadFile(n.Log())
		return err == nil && bytes.Contains(raw, []byte("the new configuration is in force"))
	})
	n.Crash()
	n.del(pods[3])
	n.Again()
	n.wantGone()
	if err := n.Stop(); err != nil {
		t.Error(err)
	}
	if raw, err := os.ReadFile(n.Log()); err != nil || bytes.Contains(raw, []byte("SIGSYS")) {
		t.Errorf("the unit does not allow what the agent does: %v\n%s", err, raw)
	}
}

// readUnit returns the values of each of the unit's settings, all words of all lines.
func readUnit(t *testing.T) map[string][]string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(programs.Tree(t), "deploy", "berthd.service"))
	must(t, err)
	unit := map[string][]string{}
	for line := range strings.SplitSeq(string(raw), "\n") {
		if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			unit[name] = append(unit[name], strings.Fields(value)...)
		}
	}
	return unit
}

// calls returns the numbers of system calls and of groups of them, by their names
// (systemd.exec(5), SystemCallFilter=). Where this machine has no such call, as an
// old name or a new one, there is nothing to allow.
func calls(t *testing.T, names []string) (allowed []int) {
	t.Helper()
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Fatalf("looking for golang.org/x/sys: %v", err)
	}
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(module)), "unix", "zsysnum_linux_"+runtime.GOARCH+".go"))
	must(t, err)
	number := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^\s+SYS_(\w+)\s+= (\d+)`).FindAllStringSubmatch(string(source), -1) {
		number[strings.ToLower(m[1])], _ = strconv.Atoi(m[2]) // \d+
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "@") {
			if n, ok := number[name]; ok {
				allowed = append(allowed, n)
			}
			continue
		}
		group, err := exec.Command("systemd-analyze", "syscall-filter", name).Output()
		if err != nil {
			t.Fatalf("systemd-analyze syscall-filter %s: %v", name, err)
		}
		var members []string
		for line := range strings.SplitSeq(string(group), "\n") {
			if member := strings.TrimSpace(line); member != "" && member != name && !strings.HasPrefix(member, "#") {
				members = append(members, member)
			}
		}
		allowed = append(allowed, calls(t, members)...)
	}
	return allowed
}

// families returns the numbers of address families, by their names.
func families(t *testing.T, names []string) (allowed []int) {
	t.Helper()
	number := map[string]int{"AF_UNIX": unix.AF_UNIX, "AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6, "AF_NETLINK": unix.AF_NETLINK}
	for _, name := range names {
		n, ok := number[name]
		if !ok {
			t.Fatalf("the unit allows sockets of %s: why?", name)
		}
		allowed = append(allowed, n)
	}
	return allowed
}

// numbers writes a list into an environment variable.
func numbers(list []int) string {
	slices.Sort(list)
	return strings.Trim(fmt.Sprint(slices.Compact(list)), "[]")
}
