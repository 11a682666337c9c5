package hostile

import (
	"bytes"
	"encoding/json"
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
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// The agent does all that it does with the capabilities, the system calls and the socket families
// that its unit allows: it starts, serves each verb, maps host ports, limits bandwidth, mends, reloads,
// queues, restores and stops. Here a call that the unit does not allow ends the agent, so that the test
// says which call it was. The unit only lets such a call fail.
func TestUnitAllowsWhatTheAgentDoes(t *testing.T) {
	nettest.Need(t)
	programs.Need(t, "systemd-analyze")
	unit := readUnit(t)
	own := programs.Own(t)
	t.Setenv(envReal, filepath.Join(own, "berthd"))
	caps := capabilities(t, unit["CapabilityBoundingSet"])
	t.Setenv(envCapabilities, numbers(caps))
	t.Setenv(envCalls, numbers(calls(t, unit["SystemCallFilter"])))
	t.Setenv(envFamilies, numbers(families(t, unit["RestrictAddressFamilies"])))
	t.Setenv(envDenials, denials(t, unit))
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
	n.wantConfined(caps)
	pods := n.adds("p", 5)
	if err := n.check(pods[0]); err != nil {
		t.Error(err)
	}
	var result []string
	mapped := nettest.Pod(t)
	ports := `"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":5353,"containerPort":53,"protocol":"udp"}],"bandwidth":{"ingressRate":8000000,"ingressBurst":800000,"egressRate":8000000,"egressBurst":800000}}`
	for _, verb := range []string{"ADD", "DEL", "ADD"} { // the last one stays until the agent is away
		if _, err := n.Exec(verb, "mapped", mapped.Ref().Path, ports); err != nil {
			t.Error(err)
		}
	}
	for container, path := range map[string]string{"process": ofProcess(t), "folder": inFolder(t)} {
		for _, verb := range []string{"ADD", "CHECK", "DEL"} {
			if raw, err := n.Exec(verb, container, path, result...); err != nil {
				t.Errorf("with %s: %v", path, err)
			} else if verb == "ADD" {
				result = []string{`"prevResult":` + string(raw)}
			}
		}
		result = nil
	}
	n.del(pods[0])
	n.del(pods[1], wait)
	nettest.Delete(t, pods[2].at)
	nft(t, "flush ruleset")
	nettest.Run(t, nil, "ip link set "+pods[3].host+" down")
	nettest.Eventually(t, "the link to be mended", func() bool { return isUp(t, pods[3].host) })
	nettest.Sysctl(t, nil, "ipv4/ip_forward", "0")
	nettest.Sysctl(t, nil, "ipv6/conf/"+pods[3].host+"/forwarding", "0")
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/" + pods[3].host + "/forwarding"} {
		nettest.Eventually(t, name+" to be on again", func() bool {
			value, err := ns.Sysctl(name)
			return err == nil && value == "1"
		})
	}
	keep := `"cni.dev/valid-attachments":[{"containerID":"p3","ifname":"eth0"},{"containerID":"p4","ifname":"eth0"},{"containerID":"mapped","ifname":"eth0"}]`
	if _, err := n.Exec("GC", "", "", keep); err != nil {
		t.Error(err)
	}
	if _, err := n.Exec("STATUS", "", ""); err != nil {
		t.Error(err)
	}
	must(t, os.Remove(root.Dir(n.Root).Socket()))
	nettest.Eventually(t, "the socket to be there again", func() bool {
		_, err := os.Lstat(root.Dir(n.Root).Socket())
		return err == nil
	})
	bundle := filepath.Join(t.TempDir(), "bundle.tar.gz")
	for _, args := range [][]string{
		{"audit", "--pods"}, {"status"}, {"pools"}, {"owed"}, {"owed", "retry"}, {"ledger"}, {"check", "--all"}, {"bundle", "-o", bundle, "--bin-dir", bin},
	} {
		if _, err := n.Berth(t.Context(), args...); err != nil {
			t.Error(err)
		}
	}
	n.wantWell(t)
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
	if _, err := n.Exec("DEL", "mapped", mapped.Ref().Path, ports); err != nil {
		t.Error(err)
	}
	n.Again()
	n.wantConfined(caps)
	n.wantGone()
	if err := n.Stop(); err != nil {
		t.Error(err)
	}
	raw, err := os.ReadFile(n.Log())
	must(t, err)
	for _, denied := range []string{"SIGSYS", "operation not permitted", "permission denied"} {
		if bytes.Contains(raw, []byte(denied)) {
			t.Errorf("the unit does not allow what the agent does: %s\n%s", denied, raw)
		}
	}
}

// ofProcess returns a pod's network namespace as that of a process which has more rights than the
// agent.
func ofProcess(t *testing.T) string {
	t.Helper()
	pod := nettest.Pod(t)
	cmd := nettest.Command(pod, "sleep", "600")
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	path := fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)
	nettest.Eventually(t, "the process to be in the pod", func() bool {
		at, err := os.Readlink(path)
		return err == nil && at == fmt.Sprintf("net:[%d]", pod.Ref().Ino)
	})
	return path
}

// inFolder returns the path of a pod's network namespace in a folder of another user.
func inFolder(t *testing.T) string {
	t.Helper()
	pod := nettest.Pod(t)
	if !programs.InitialUser() {
		return pod.Ref().Path // there is no other user
	}
	folder, err := os.MkdirTemp("/run", "theirs-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(folder)) })
	path := filepath.Join(folder, "pod")
	must(t, os.Symlink(pod.Ref().Path, path))
	must(t, os.Chown(folder, 54321, 54321))
	return path
}

// wantConfined checks that the agent has the unit's capabilities and no others, and the filter.
func (n *node) wantConfined(caps []int) {
	n.t.Helper()
	status, err := n.API.Status(n.t.Context(), "")
	must(n.t, err)
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", status.PID))
	must(n.t, err)
	set := uint64(0)
	for _, c := range caps {
		set |= 1 << c
	}
	for _, want := range []string{fmt.Sprintf("CapEff:\t%016x", set), fmt.Sprintf("CapBnd:\t%016x", set), "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(string(raw), "\n"+want+"\n") {
			n.t.Errorf("the agent does not have %q:\n%s", want, raw)
		}
	}
}

// wantWell checks that `berth doctor` has nothing to say against the agent's rights.
func (n *node) wantWell(t *testing.T) {
	t.Helper()
	raw, _ := n.Berth(t.Context(), "doctor", "-o", "json", "--bin-dir", n.bin) // other complaints about the test's node are not about the agent's rights
	var v struct {
		Checks []struct{ Name, Verdict, Seen string }
	}
	must(t, json.Unmarshal([]byte(raw), &v))
	for _, name := range []string{"agent", "capabilities", "forwarding"} {
		i := slices.IndexFunc(v.Checks, func(c struct{ Name, Verdict, Seen string }) bool { return c.Name == name })
		if i < 0 || v.Checks[i].Verdict != "ok" {
			t.Errorf("berth doctor says of %s: %s", name, raw)
		}
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
	number, err := callNumbers()
	must(t, err)
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

// callNumbers returns the numbers of this machine's system calls by their names, as x/sys has them.
var callNumbers = sync.OnceValues(func() (map[string]int, error) {
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		return nil, fmt.Errorf("looking for golang.org/x/sys: %w", err)
	}
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(module)), "unix", "zsysnum_linux_"+runtime.GOARCH+".go"))
	if err != nil {
		return nil, err
	}
	number := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^\s+SYS_(\w+)\s+= (\d+)`).FindAllStringSubmatch(string(source), -1) {
		number[strings.ToLower(m[1])], _ = strconv.Atoi(m[2]) // \d+
	}
	return number, nil
})

// families returns the numbers of address families, by their names.
func families(t *testing.T, names []string) []int {
	t.Helper()
	number := map[string]int{"AF_UNIX": unix.AF_UNIX, "AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6, "AF_NETLINK": unix.AF_NETLINK}
	return numbered(t, number, names, "the unit allows sockets of %s: why?")
}

// numbered returns the numbers of names, and ends the test if a name has none.
func numbered(t *testing.T, number map[string]int, names []string, why string) (all []int) {
	t.Helper()
	for _, name := range names {
		n, ok := number[name]
		if !ok {
			t.Fatalf(why, name)
		}
		all = append(all, n)
	}
	return all
}

// capabilities returns the numbers of capabilities, by their names.
func capabilities(t *testing.T, names []string) []int {
	t.Helper()
	number := map[string]int{
		"CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN,
		"CAP_SYS_PTRACE": unix.CAP_SYS_PTRACE, "CAP_DAC_READ_SEARCH": unix.CAP_DAC_READ_SEARCH,
	}
	return numbered(t, number, names, "the unit gives the agent %s: why?")
}

// elsewhere are settings of the unit that give the agent no right to a system call, or that confine
// follows without being told. Some settings need a cgroup, or systemd.
var elsewhere = []string{
	"Type", "ExecStart", "ExecReload", "Restart", "RestartSec", "TimeoutStartSec", "TimeoutStopSec", "KillMode", "OOMScoreAdjust",
	"LimitNOFILE", "Environment", "MemoryMax", "DevicePolicy", "KeyringMode", "SystemCallArchitectures", "SystemCallErrorNumber",
	"Description", "Documentation", "After", "Before", "StartLimitIntervalSec", "WantedBy",
	"CapabilityBoundingSet", "SystemCallFilter", "RestrictAddressFamilies", "NoNewPrivileges", "UMask",
}

// denials returns what the unit's other settings forbid in system calls that the unit allows
// (systemd.exec(5)). A setting that the test does not know fails the test.
func denials(t *testing.T, unit map[string][]string) string {
	t.Helper()
	const spaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID
	const setid = unix.S_ISUID | unix.S_ISGID
	type said struct {
		call string
		denial
	}
	known := map[string][]said{ // by setting and value
		"RestrictNamespaces=net": {
			{"clone", denial{arg: 0, bits: spaces, any: true}}, {"unshare", denial{arg: 0, bits: spaces, any: true}}, {"setns", denial{arg: 1, bits: spaces, any: true}},
		},
		"MemoryDenyWriteExecute=yes": {
			{"mmap", denial{arg: 2, bits: unix.PROT_WRITE | unix.PROT_EXEC}}, {"mprotect", denial{arg: 2, bits: unix.PROT_EXEC}},
			{"pkey_mprotect", denial{arg: 2, bits: unix.PROT_EXEC}}, {"shmat", denial{arg: 2, bits: 0o100000}}, // SHM_EXEC
		},
		"RestrictSUIDSGID=yes": {
			{"chmod", denial{arg: 1, bits: setid, any: true}}, {"fchmod", denial{arg: 1, bits: setid, any: true}}, {"fchmodat", denial{arg: 2, bits: setid, any: true}},
			{"mkdir", denial{arg: 1, bits: setid, any: true}}, {"mkdirat", denial{arg: 2, bits: setid, any: true}}, {"openat", denial{arg: 3, bits: setid, any: true}},
		},
		"RestrictRealtime=yes": {{"sched_setscheduler", denial{arg: 1, bits: 7, any: true}}},
		"LockPersonality=yes":  {{"personality", denial{arg: 0, bits: 0xff, any: true}}},
	}
	var all []string
	for name, values := range unit {
		if slices.Contains(elsewhere, name) {
			continue
		}
		list, ok := known[name+"="+strings.Join(values, " ")]
		if !ok {
			t.Fatalf("the unit says %s=%s, which this test knows nothing of", name, strings.Join(values, " "))
		}
		for _, s := range list {
			for _, n := range calls(t, []string{s.call}) { // an architecture may lack a call
				s.denial.call = n
				all = append(all, s.denial.String())
			}
		}
	}
	return strings.Join(all, " ")
}

// numbers writes a list into an environment variable.
func numbers(list []int) string {
	slices.Sort(list)
	return strings.Trim(fmt.Sprint(slices.Compact(list)), "[]")
}
