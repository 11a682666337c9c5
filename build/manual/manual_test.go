package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/cni/netconf"
)

// Each command has a page, and completion knows it.
func TestCommands(t *testing.T) {
	dir := t.TempDir()
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		return string(raw)
	}
	if page := read("man/berth-uninstall.1"); !strings.Contains(page, `\fB--dry-run\fP`) {
		t.Errorf("berth-uninstall.1 does not name its flag:\n%s", page)
	}
	for _, page := range []string{"berth.1", "berth-status.1", "berth-owed-retry.1"} {
		read("man/" + page)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if !strings.Contains(read("completion/berth."+shell), "__complete") {
			t.Errorf("completion for %s does not ask berth", shell)
		}
	}
}

var flag = regexp.MustCompile(`--([a-z-]+)`)

// The page of a daemon names every flag of the daemon, and no other.
func TestDaemonPages(t *testing.T) {
	for _, daemon := range []string{"berthd", "berth-runner"} {
		help := exec.Command("go", "run", "./cmd/"+daemon, "--help")
		help.Dir = filepath.Join("..", "..")
		out, err := help.Output()
		if err != nil {
			t.Fatal(err)
		}
		_, flags, _ := strings.Cut(string(out), "\nFlags:\n")
		want, have := map[string]bool{}, map[string]bool{}
		for _, m := range flag.FindAllStringSubmatch(flags, -1) {
			want[m[1]] = true
		}
		for _, m := range flag.FindAllStringSubmatch(page(t, daemon+".8"), -1) {
			have[m[1]] = true
		}
		if len(want) < 5 {
			t.Fatalf("%s --help has only the flags %v", daemon, want)
		}
		differ(t, daemon+".8", want, have)
	}
}

// berth-cni.8 names every key of a network configuration that is Berth's own.
func TestPluginPage(t *testing.T) {
	page := page(t, "berth-cni.8")
	for _, key := range netconf.Keys() {
		if !strings.Contains(page, "\n.B "+key+"\n") {
			t.Errorf("berth-cni.8 does not have the key %s", key)
		}
	}
}

// page returns a page as a terminal shows its hyphens.
func page(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(raw), `\-`, "-")
}

func differ(t *testing.T, where string, want, have map[string]bool) {
	t.Helper()
	for name := range want {
		if !have[name] {
			t.Errorf("%s lacks --%s", where, name)
		}
	}
	for name := range have {
		if !want[name] {
			t.Errorf("%s has --%s, which does not exist", where, name)
		}
	}
}
