package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/conform"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// Every finding has a name and a recipe of its own, and names checks and lists that exist.
func TestFindings(t *testing.T) {
	checks, lists, names := map[string]bool{}, map[string]bool{}, map[string]bool{"node": true}
	for _, c := range conform.Checks() {
		checks[c.Name] = true
	}
	for _, s := range subjects {
		lists[s.name] = true
	}
	for _, f := range findings {
		if names[f.name] {
			t.Errorf("there are two findings %s", f.name)
		}
		names[f.name] = true
		if lines, err := recipe(f.name); err != nil || len(lines) > 10 {
			t.Errorf("%s: a recipe of %d lines, which should be 10 at most: %v", f.name, len(lines), err)
		}
		for _, s := range f.shows {
			if !checks[s.check] {
				t.Errorf("%s: there is no check %s", f.name, s.check)
			}
			for _, list := range s.lists {
				if !lists[list] {
					t.Errorf("%s: there is no list %s", f.name, list)
				}
			}
		}
	}
	files, err := filepath.Glob("findings/*.sh")
	nettest.Must(t, err)
	for _, file := range files {
		if name := strings.TrimSuffix(filepath.Base(file), ".sh"); !names[name] {
			t.Errorf("%s is the recipe of no finding", file)
		}
	}
}

// Every recipe shows its finding, on a node of its own.
func TestRecipes(t *testing.T) {
	nettest.Need(t)
	programs.Need(t, "bash", "ip", "iptables", "nft", "conntrack", "unshare")
	peers := programs.Peers(t, "bridge", "firewall", "flannel", "host-device", "host-local", "loopback", "multus", "portmap", "ptp", "sbr", "tap", "tuning")
	for _, f := range findings {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			if f.plugin == "tap" {
				needTun(t)
			}
			if out, err := follow(t, f.name, peers); err != nil {
				t.Errorf("the recipe does not show the finding: %v\n%s", err, out)
			}
		})
	}
}

// needTun skips a test if it may not make tap devices: on some machines root alone may.
func needTun(t *testing.T) {
	t.Helper()
	tun, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("the plugin tap needs it: %v", err)
	}
	tun.Close()
}

// A recipe fails if the plugin is mended.
func TestRecipeFails(t *testing.T) {
	nettest.Need(t)
	programs.Need(t, "bash", "ip", "unshare")
	dir := t.TempDir()
	nettest.Must(t, os.WriteFile(filepath.Join(dir, "bridge"), []byte("#!/bin/sh\necho '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"1.0.0\"]}'\n"), 0o755))
	if out, err := follow(t, "version-echo", dir); err == nil {
		t.Errorf("the recipe of version-echo succeeds with a plugin that answers in the request's version\n%s", out)
	}
}

// follow runs a recipe as the page tells to, in namespaces of its own, with the plugins of a folder.
func follow(t *testing.T, name, plugins string) ([]byte, error) {
	t.Helper()
	node, err := recipe("node")
	nettest.Must(t, err)
	lines, err := recipe(name)
	nettest.Must(t, err)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--net", "bash", "-c", strings.Join(slices.Concat(node, lines), "\n"))
	cmd.Env = append(os.Environ(), "CNI_PATH="+plugins)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.Bytes(), err
}

// A bad result is explained by its findings alone, with the lists that these name. No finding explains a bad result of Berth's.
func TestExplain(t *testing.T) {
	judged := []judgement{{subject{name: "bridge"}, &conform.Report{Results: []conform.Result{
		{Check: "version/echo@1.0.0", Outcome: conform.Fail, Level: conform.Must},
		{Check: "version/answer@1.0.0", Outcome: conform.Fail, Level: conform.Must, Seen: []string{"no version"}},
		{Check: "add/error-version@0.4.0", Outcome: conform.Pass},
	}}}, {subject{name: "berth", ours: true}, &conform.Report{Results: []conform.Result{{Check: "version/echo@1.0.0", Outcome: conform.Leak}}}}}
	x := explain(judged)
	if got := x.of["bridge"]; !slices.Equal(got, []string{"version-echo"}) {
		t.Errorf("bridge has the findings %v", got)
	}
	if got := x.unexplained; !slices.Equal(got, []string{"bridge: version/answer@1.0.0: no version", "berth: version/echo@1.0.0: leak"}) {
		t.Errorf("unexplained are %q", got)
	}
	if slices.Contains(x.unseen, "version-echo") || !slices.Contains(x.unseen, "error-version") {
		t.Errorf("findings without a bad result: %v", x.unseen)
	}
}
