package conform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/conform/internal/trial"
	"github.com/vishvananda/netlink"
)

var must = trial.Must

// judgeEnv is an environment variable with an order as JSON. If it is set, the test program carries the
// order out and writes the report.
const judgeEnv = "CONFORM_TEST_JUDGE"

// programs is the folder of the planted plugin.
var programs string

// TestMain runs the tests in namespaces that play the machine, whose files the tests can write. To
// judge, the tests run this program again, in other namespaces within these.
func TestMain(m *testing.M) {
	trial.FindSystem()
	what, mounts := os.Getenv(judgeEnv), furnish
	if what == "" {
		mounts = ownMounts
	}
	done, code, err := enter(mounts)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if done {
		os.Exit(code)
	}
	if what != "" {
		if err := judge(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if programs, err = os.MkdirTemp("", "conform-programs-*"); err == nil {
		err = build(programs)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code = m.Run()
	os.RemoveAll(programs)
	os.Exit(code)
}

func build(dir string) error {
	if out, err := exec.Command("go", "build", "-o", dir, "./planted").CombinedOutput(); err != nil {
		return fmt.Errorf("building the planted plugin: %w: %s", err, out)
	}
	return os.Chmod(dir, 0o755)
}

// order says what a test wants to be judged.
type order struct {
	Conf, StateDir, HookDir, Run string
	Timeout                      time.Duration
	Tunnel                       bool     // each pod has a tunnel's link from its beginning, as some kernels give one
	Open                         []string // if any: only say which of these files can be opened to be written
}

// judge carries out an order, in the process that order.carryOut started.
func judge(what string) error {
	var o order
	if err := json.Unmarshal([]byte(what), &o); err != nil {
		return err
	}
	if o.Open != nil {
		return json.NewEncoder(os.Stdout).Encode(slices.DeleteFunc(o.Open, func(path string) bool {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			return err != nil || f.Close() != nil
		}))
	}
	opts := Options{
		BinDir: filepath.Dir(o.Conf), Conf: o.Conf, StateDirs: []string{o.StateDir}, HookDir: o.HookDir,
		Timeout: o.Timeout, Grace: 300 * time.Millisecond, Points: 5, Churn: 60,
		Repeat: func(run string) string { return "conform --run '" + run + "'" },
	}
	if o.Tunnel {
		opts.born = func() error { // tunl0 needs a module; any link does
			return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "tunl0"}})
		}
	}
	if o.Run != "" {
		opts.Run = regexp.MustCompile(o.Run)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	report, err := Run(ctx, opts)
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return report.Write(os.Stdout, "json", false)
}

// judgedBy runs checks of a list in a process of its own. The first of hooks, if there is any, is
// the folder of the hooks.
func judgedBy(t *testing.T, plugins string, version, run string, hooks ...string) *Report {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"bin", "state"} {
		must(t, os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	for _, name := range regexp.MustCompile(`planted[a-z-]*`).FindAllString(plugins, -1) {
		if err := os.Symlink(filepath.Join(programs, "planted"), filepath.Join(dir, "bin", name)); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
	}
	o := order{Conf: filepath.Join(dir, "bin/net.conflist"), StateDir: filepath.Join(dir, "state"), Run: run, Timeout: DefaultTimeout}
	o.Tunnel = strings.Contains(plugins, program("linkless")) // which has no other link
	if len(hooks) > 0 {
		o.HookDir = hooks[0]
	}
	for fault, timeout := range map[string]time.Duration{"hang": 2 * time.Second, "slow": slowTimeout} {
		if strings.Contains(plugins, program(fault)) {
			o.Timeout = timeout
		}
	}
	list := fmt.Sprintf(`{"cniVersion": %q, "name": "planted", "plugins": [%s]}`, version, strings.ReplaceAll(plugins, "STATE", o.StateDir))
	must(t, os.WriteFile(o.Conf, []byte(list), 0o644))
	var report Report
	o.carryOut(t, &report)
	if left := listing(t, o.StateDir); len(left) > 0 {
		t.Errorf("in the machine's own state folder is left %q", left)
	}
	return &report
}

// carryOut carries an order out in a process of its own, and decodes what that process writes into
// out: a report, or a list of files.
func (o order) carryOut(t *testing.T, out any) {
	t.Helper()
	what, err := json.Marshal(o)
	must(t, err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, stage+"=") }), judgeEnv+"="+string(what))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("judging: %v: %s", err, stderr.String())
	}
	if err := json.Unmarshal(stdout.Bytes(), out); err != nil {
		t.Fatalf("%v: %s", err, stdout.String())
	}
}

// planted returns the configuration of the planted plugin with a fault. If fault is "", the plugin
// has no fault.
func planted(fault string) string {
	subnet := "10.8.0.0/25"
	switch fault {
	case "addresses-used-up":
		subnet = "10.8.0.0/26"
	case "status-ignores-full", "addresses-lost-without-netns":
		subnet = "10.8.0.0/27" // which can be filled
	}
	switch {
	case fault == "ipam-with-interfaces":
		return withIPAM("", fault, subnet)
	case slices.Contains(delegating, fault):
		return withIPAM(fault, "ipam", subnet)
	}
	capabilities := ""
	if fault == "" || strings.HasPrefix(fault, "rate-") || strings.HasPrefix(fault, "port-") {
		capabilities = `, "capabilities": {"bandwidth": true, "portMappings": true}`
	}
	return fmt.Sprintf(`{"type": %q, "subnet": %q, "stateDir": "STATE"%s}`, program(fault), subnet, capabilities)
}

// withIPAM returns the configuration of the planted plugin with a fault, which delegates to one with another.
func withIPAM(fault, ipam, subnet string) string {
	return fmt.Sprintf(`{"type": %q, "subnet": %q, "stateDir": "STATE", "ipam": {"type": %q}}`, program(fault), subnet, program(ipam))
}

// program returns the name of the program under which the planted plugin has a fault.
func program(fault string) string { return strings.TrimSuffix("planted-"+fault, "-") }

// absent are the checks that cannot be made of a single plugin that needs no daemon,
// delegates to no plugin and has room for many pods, and the checks that need something
// that not every machine has.
var absent = []string{
	"add/delegated", "add/delegated-applied", "add/delegated-failed", "add/delegated-result", "add/delegated-stderr", "add/prev-result",
	"chain/check", "chain/del-one", "chain/failed-add", "check/delegated", "del/delegated", "gc/delegated", "leak/daemon", "status/daemon", "status/delegated", "status/exhausted",
}

// A plugin has a fault in one version, and one check finds the fault. The checks that need this
// check are judged in the other versions all the same.
func TestMissing(t *testing.T) {
	s := &suite{report: Report{Results: []Result{{Check: "add/result@0.4.0", Outcome: Fail}, {Check: "leak/add-del", Outcome: Leak}}}}
	for _, c := range []struct {
		need, version string
		want          bool
	}{
		{"add/result", "0.4.0", true},
		{"add/result", "1.0.0", false},
		{"check/well", "0.4.0", true}, // needs add/result
		{"leak/add-del", "1.0.0", true},
		{"basic/attach", "1.0.0", false},
	} {
		if got, why := s.missing(Check{Needs: []string{c.need}}, c.version); (got != "") != c.want || (why != "") != c.want {
			t.Errorf("what needs %s in %s: %q: %q", c.need, c.version, got, why)
		}
	}
	check, later := s.missing(Check{Since: "1.1.0", Needs: []string{"leak/add-del"}}, "1.0.0")
	if check != "" || later != "the list's version is 1.0.0; CNI has had this since 1.1.0" {
		t.Errorf("what came later: %q", later)
	}
}

// A plugin that does all that it should has no bad result.
func TestRight(t *testing.T) {
	for version, run := range map[string]string{"0.4.0": checksFor(nil), "1.0.0": checksFor(nil), "1.1.0": ""} {
		t.Run(version, func(t *testing.T) {
			if testing.Short() && version != "1.1.0" {
				t.Skip("takes a minute")
			}
			t.Parallel()
			for _, r := range judgedBy(t, planted(""), version, run).Results {
				name, _, _ := strings.Cut(r.Check, "@")
				later := strings.HasPrefix(strings.Join(r.Seen, ""), "the list's version is "+version+"; CNI has had this since ")
				if r.Outcome.Bad() || r.Outcome == Unsupported && !slices.Contains(absent, name) && !later {
					t.Errorf("%s: %s: %s", r.Check, r.Outcome, strings.Join(r.Seen, "\n"))
				}
			}
		})
	}
}

// A plugin that delegates, and its IPAM plugin, do all that they should.
func TestDelegating(t *testing.T) {
	t.Parallel()
	passed := 0
	for _, r := range judgedBy(t, withIPAM("", "ipam", "10.8.0.0/25"), "1.1.0", "delegated|^basic/attach|^check/well|^leak/(add-del|kill-add)|^add/(result|failed)|^gc/").Results {
		if r.Outcome.Bad() {
			t.Errorf("%s: %s: %s", r.Check, r.Outcome, strings.Join(r.Seen, "\n"))
		}
		if strings.Contains(r.Check, "delegated") && r.Outcome == Pass {
			passed++
		}
	}
	if passed < 9 {
		t.Errorf("only %d checks of delegation pass", passed)
	}
}

// A range with fewer addresses than the pods that the churn attaches at once is no leak.
func TestSmallRange(t *testing.T) {
	small := strings.Replace(planted(""), "/25", "/29", 1)
	for _, r := range judgedBy(t, small, "1.1.0", "^leak/churn$|^parallel/").Results {
		if r.Outcome.Bad() {
			t.Errorf("%s: %s: %s", r.Check, r.Outcome, strings.Join(r.Seen, "\n"))
		}
	}
}

// slowTimeout is how long one call of the planted plugin may take that needs 150 ms for each of 64 pods, one by one.
const slowTimeout = 6 * time.Second

// A plugin works through pods one by one. The last of many calls at once waits longer than
// one call may take, and yet does not count as hanging.
func TestSlow(t *testing.T) {
	t.Parallel()
	for _, r := range judgedBy(t, planted("slow"), "1.1.0", "^parallel/pods$").Results {
		if r.Outcome != Pass || r.Took < slowTimeout {
			t.Errorf("%s: %s after %s: %s", r.Check, r.Outcome, r.Took, strings.Join(r.Seen, "\n"))
		}
	}
}

// A list of two plugins has no bad result, unless the second drops what the first has done.
func TestChain(t *testing.T) {
	const run = "^(basic|chain|check)/|^add/|^leak/add-del$"
	for fault, caught := range map[string]string{"": "", "prev-result-dropped": "add/prev-result"} {
		t.Run(program(fault), func(t *testing.T) {
			t.Parallel()
			second := strings.Replace(planted(fault), "{", `{"chained": true, `, 1)
			for _, r := range judgedBy(t, planted("")+", "+second, "1.1.0", run).Results {
				if strings.Contains(r.Check, "/delegated") { // the plugins delegate to nobody
					continue
				}
				if r.Outcome.Bad() != (r.Check == caught) || fault == "" && r.Outcome != Pass {
					t.Errorf("%s: %s: %s", r.Check, r.Outcome, strings.Join(r.Seen, "\n"))
				}
			}
		})
	}
}
