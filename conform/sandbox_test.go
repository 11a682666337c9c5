package conform

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/conform/internal/trial"
	"github.com/berth-net/berth/conform/oracle"
)

// TestHostIsUntouched looks at the machine (here the namespaces that the tests run in, with
// a network namespace of this test's own) before and after it judges plugins that leave
// things behind. Nothing of these things is on the machine afterwards.
func TestHostIsUntouched(t *testing.T) {
	runtime.LockOSThread() // for good: the thread ends with the test
	must(t, unix.Unshare(unix.CLONE_NEWNET))
	must(t, os.WriteFile("/run/marker", nil, 0o644))
	// If something writes to these folders after all, it does not write to the real ones.
	for _, dir := range []string{"/usr/local", "/opt", "/home", "/root", "/srv", "/mnt", "/var/lib", "/var/log", "/var/tmp", "/dev/shm"} {
		trial.Mount(t, dir, "mode=0755")
	}
	before, mounts := machine(t), mountinfo(t)
	for _, fault := range []string{"file-left", "rule-left", "strays"} {
		report := judgedBy(t, planted(fault), "1.1.0", "^leak/add-del$|^leak/reboot$")
		if (report.Count(Leak) > 0) != (fault != "strays") || report.Count(Fail) > 0 {
			t.Errorf("%s: %+v", fault, report.Results)
		}
	}
	if diff := before.Diff(machine(t)); diff != "" {
		t.Errorf("judging changed the machine:\n%s", diff)
	}
	if after := mountinfo(t); after != mounts {
		t.Errorf("judging changed mounts:\n%s\nbefore:\n%s", after, mounts)
	}
	for _, depth := range []string{"/*", "/*/*", "/*/*/*"} {
		strays, err := filepath.Glob(depth + "/planted-stray")
		must(t, err)
		for _, stray := range strays {
			t.Errorf("judging wrote %s to the machine", stray)
			if err := os.Remove(stray); err != nil {
				t.Error(err)
			}
		}
	}
	if err := os.Remove("/run/marker"); err != nil {
		t.Error(err)
	}
}

// Files that steer the machine cannot be opened for writing. Files that steer a network
// namespace can be, and so can devices that discard what is written.
func TestSteering(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o666))
	want := []string{"/proc/sys/net/ipv4/ip_forward", "/dev/null"}
	var got []string
	order{Open: append(want, file, "/proc/sys/kernel/core_pattern", "/proc/sys/vm/swappiness", "/proc/sysrq-trigger")}.carryOut(t, &got)
	if !slices.Equal(got, want) {
		t.Errorf("can be written: %q, not %q", got, want)
	}
}

// TestCover has mounts below the covered folder. The folder's name has characters that an overlay's
// options and mountinfo escape.
func TestCover(t *testing.T) {
	dir := filepath.Join(t.TempDir(), `all: a, b\c`)
	for _, d := range []string{"plain", "mount", "mount-2", "mount/in it"} {
		path := filepath.Join(dir, d)
		must(t, os.MkdirAll(path, 0o755))
		if d != "plain" {
			trial.Mount(t, path, "mode=0755")
		}
		must(t, os.WriteFile(filepath.Join(path, "file"), []byte(d), 0o644))
	}
	must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	before := mountinfo(t)
	must(t, cover(dir, filepath.Join(suiteDir, "test")))
	for _, d := range []string{"plain", "mount", "mount-2", "mount/in it"} {
		if raw, err := os.ReadFile(filepath.Join(dir, d, "file")); string(raw) != d {
			t.Errorf("under the overlay the file of %s has %q (%v)", d, raw, err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("the overlay's mode is %v (%v)", info.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(dir, "plain/file"), []byte("changed"), 0o644); err != nil {
		t.Error(err)
	}
	must(t, unix.Unmount(dir, unix.MNT_DETACH))
	if raw, err := os.ReadFile(filepath.Join(dir, "plain/file")); string(raw) != "plain" {
		t.Errorf("the machine's file has %q (%v)", raw, err)
	}
	if after := mountinfo(t); after != before {
		t.Errorf("mounts are left:\n%s\nbefore:\n%s", after, before)
	}
}

// machine returns all that the oracle sees of the machine, and what is in /run.
func machine(t *testing.T) oracle.State {
	t.Helper()
	all, err := oracle.Look()
	must(t, err)
	run, err := oracle.Files(volatile)
	must(t, err)
	return all.And(run)
}

// Nodes get empty state folders: one in place of a folder that the machine has, and one in place of a
// folder that the machine lacks. Afterwards the machine and its mounts are as before.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	full, lacking := filepath.Join(dir, "full"), filepath.Join(dir, "not/yet")
	must(t, os.Mkdir(full, 0o755))
	must(t, os.WriteFile(filepath.Join(full, "own"), nil, 0o644))
	before := mountinfo(t)
	for range 2 { // the second node finds nothing of the first
		s, err := openStore([]string{full, lacking, filepath.Join(volatile, "state")})
		must(t, err)
		for _, d := range []string{full, lacking} {
			if names := listing(t, d); len(names) != 0 {
				t.Errorf("in %s is %q; it should be empty", d, names)
			}
			if err := os.WriteFile(filepath.Join(d, "new"), nil, 0o644); err != nil {
				t.Error(err)
			}
		}
		must(t, s.close())
	}
	if names := listing(t, full); strings.Join(names, " ") != "own" {
		t.Errorf("the machine's folder has %q now", names)
	}
	if names := listing(t, dir); strings.Join(names, " ") != "full" {
		t.Errorf("the machine has %q now", names)
	}
	if after := mountinfo(t); after != before {
		t.Errorf("mounts are left:\n%s\nbefore:\n%s", after, before)
	}
	if _, err := openStore([]string{"/nowhere-at-all/state"}); err == nil || !strings.Contains(err.Error(), "make it first") {
		t.Errorf("a folder in the root folder: %v", err)
	}
}

func TestRebootRun(t *testing.T) {
	for _, d := range []string{"conform/x", "netns/x", "plugin/x"} {
		must(t, os.MkdirAll(filepath.Join(volatile, d), 0o755))
	}
	must(t, rebootRun())
	if names := listing(t, volatile); strings.Join(names, " ") != "conform netns" {
		t.Errorf("after a reboot /run has %q", names)
	}
	must(t, os.Remove(filepath.Join(netnsDir, "x")))
}

func TestWithin(t *testing.T) {
	for path, want := range map[string]bool{"/a": true, "/a/b": true, "/ab": false, "/": false, "/b": false, "/a/..b": true} {
		if within(path, "/a") != want {
			t.Errorf("%s in /a: not %v", path, want)
		}
	}
}

// place refuses paths that do not exist, folders of plugins that each node hides, and state folders
// that a check may not empty.
func TestPlace(t *testing.T) {
	list := filepath.Join(t.TempDir(), "net.conflist")
	must(t, os.WriteFile(list, []byte(`{"name": "n", "cniVersion": "1.0.0", "plugins": [{"type": "planted"}]}`), 0o644))
	start := filepath.Join(t.TempDir(), "start")
	must(t, os.WriteFile(start, nil, 0o644))
	for want, o := range map[string]Options{
		"because each node has its own":           {BinDir: "/run", Conf: list},
		"is not a folder":                         {BinDir: list, Conf: list},
		"the suite would empty it for each check": {BinDir: programs, Conf: list, StateDirs: []string{filepath.Dir(programs)}},
		"no such file":                            {BinDir: programs, Conf: list + "x"},
		"/planted: no such file":                  {BinDir: t.TempDir(), Conf: list},
		"more than the plugins' state":            {BinDir: programs, Conf: list, StateDirs: []string{"/"}},
		"/nowhere: no such file":                  {BinDir: "/nowhere", Conf: list},
		"hooks: no such file":                     {BinDir: programs, Conf: list, HookDir: "/hooks"},
		"neither a program":                       {BinDir: programs, Conf: list, HookDir: t.TempDir()},
		"start is not executable":                 {BinDir: programs, Conf: list, HookDir: filepath.Dir(start)},
		"cannot be a state folder":                {BinDir: programs, Conf: list, StateDirs: []string{"/proc"}},
		"no check has a name that matches":        {BinDir: programs, Conf: list, Run: regexp.MustCompile(`^nix$`)},
	} {
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, not an error with %q", o, err, want)
		}
	}
}

// TestInterrupted tells the first process of the namespaces to end while the second check
// is being prepared. The second check has no result: no plugin is blamed for an interrupt.
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	const start = "#!/bin/sh\necho >>/run/conform/nodes\ntest $(wc -l </run/conform/nodes) -lt 3 || { kill -INT 1; exec sleep 30; }\n"
	must(t, os.WriteFile(filepath.Join(dir, "start"), []byte(start), 0o755))
	report := judgedBy(t, planted(""), "1.1.0", "^basic/|^version/", dir)
	if len(report.Results) != 1 || report.Results[0].Outcome != Pass || !report.Interrupted {
		t.Errorf("results are %+v, not just that of the check that had ended", report.Results)
	}
}

func listing(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func mountinfo(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	return string(raw)
}
