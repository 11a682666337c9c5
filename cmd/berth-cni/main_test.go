package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/berth-net/berth/internal/nettest"
)

// bin is the folder of the built plugin, as `make` builds it.
var bin string

func TestMain(m *testing.M) {
	beDeleter()
	nettest.Enter() // the plugin changes links
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "berth-cni")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		if err := os.Chmod(dir, 0o755); err != nil { // for a user without rights, too
			panic(err)
		}
		bin = dir
		if err := build(".", "berth-cni"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

var must = nettest.Must

// build builds a program of this module into the folder bin.
func build(pkg, name string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(bin, name), pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %v\n%s", cmd, err, out)
	}
	return nil
}

// TestScripts runs the built plugin against a pretended agent. Scripts have
// these commands of their own:
//
//	conf [KEYS]           writes stdin: a configuration with the keys, JSON without braces
//	agent STATUS [FILE]   the agent at $ROOT answers from now on with this HTTP status, and the file as body
//	agent raw FILE        the agent writes the file, with CRLF for newlines, and closes
//	queued N REASON       N deletions are queued, the last of them for this reason
//	request               writes the last request that the agent got to the file request; fails if there was none
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			root := filepath.Join(env.WorkDir, "root")
			env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("ROOT", root)
			env.Setenv("CNI_CONTAINERID", "c1")
			env.Setenv("CNI_IFNAME", "eth0")
			env.Setenv("CNI_NETNS", "/proc/self/ns/net")
			env.Setenv("CNI_PATH", bin)
			env.Values["agent"] = &agent{root: root}
			return os.Mkdir(root, 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"conf": func(ts *testscript.TestScript, neg bool, args []string) {
				ts.Check(os.WriteFile(ts.MkAbs("stdin"), []byte(conf(ts.Getenv("ROOT"), strings.Join(args, ","))), 0o600))
			},
			"agent": func(ts *testscript.TestScript, neg bool, args []string) {
				a := ts.Value("agent").(*agent)
				var body string
				if len(args) > 1 {
					body = ts.ReadFile(args[1])
				}
				ts.Check(a.start())
				ts.Defer(a.stop)
				a.answer(args[0], body)
			},
			"queued": func(ts *testscript.TestScript, neg bool, args []string) {
				all, err := queued(ts.Getenv("ROOT"))
				ts.Check(err)
				if fmt.Sprint(len(all)) != args[0] || !strings.Contains(all[len(all)-1].Reason, args[1]) {
					ts.Fatalf("%d deletions are queued: %+v", len(all), all)
				}
			},
			"request": func(ts *testscript.TestScript, neg bool, args []string) {
				seen := ts.Value("agent").(*agent).last()
				if neg != (seen == "") {
					ts.Fatalf("request: %q", seen)
				}
				ts.Check(os.WriteFile(ts.MkAbs("request"), []byte(seen), 0o600))
			},
		},
	})
}

// conf makes a configuration for the agent at root. keys replace keys that each configuration has,
// or add to them.
func conf(root, keys string) string {
	out := keys
	for _, d := range []string{`"cniVersion":"1.1.0"`, `"name":"net"`, `"type":"berth-cni"`, fmt.Sprintf(`"root":%q`, root)} {
		if name, _, _ := strings.Cut(d, ":"); !strings.Contains(","+keys, ","+name) {
			out += "," + d
		}
	}
	return "{" + strings.TrimPrefix(out, ",") + "}"
}
