package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/runner/client"
	"github.com/berth-net/berth/internal/runner/wire"
)

var must = nettest.Must

// program, in the environment, has this test be the program.
const program = "BERTH_TEST_IS_RUNNER"

func TestMain(m *testing.M) {
	if os.Getenv(program) != "" {
		main()
		return
	}
	nettest.Main(m)
}

// The program serves until SIGTERM, and runs a plugin of --bin-dir.
func TestRuns(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	must(t, os.Mkdir(bin, 0o755), os.WriteFile(filepath.Join(bin, "plugin"), []byte("#!/bin/sh\ngrep SigIgn /proc/self/status\n"), 0o755))
	cmd := exec.Command("/proc/self/exe", "--root", dir, "--bin-dir", bin, "--processes", "2")
	cmd.Env = append(os.Environ(), program+"=1")
	cmd.Stderr = t.Output()
	must(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }()
	c := client.New(root.Dir(dir).RunnerSocket())
	defer c.Close()
	nettest.Eventually(t, "the program to serve", func() bool {
		_, err := c.Find(t.Context(), "plugin", []string{bin})
		return err == nil
	})
	a, err := c.Run(t.Context(), wire.Request{Find: wire.Find{Type: "plugin", Folders: []string{bin}}, Env: map[string]string{"CNI_COMMAND": "VERSION"}})
	must(t, err)
	var ignored uint64 // as a mask; whoever began the test may ignore some, too
	if n, err := fmt.Sscanf(string(a.Stdout), "SigIgn: %x", &ignored); n != 1 || ignored&(1<<(unix.SIGPIPE-1)) != 0 {
		t.Errorf("the plugin ignores SIGPIPE: %q, %v", a.Stdout, err)
	}
	must(t, cmd.Process.Signal(unix.SIGTERM), cmd.Wait())
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--processes 1":     "1 processes at once",
		"--processes -2":    "-2 processes at once",
		"--bin-dir opt/cni": `"opt/cni" is no folder for plugins`,
		"--log-level loud":  "--log-level",
		"--log-format xml":  "--log-format",
		"--root=":           "--root is empty",
		"--nothing":         "unknown flag",
		"word":              "unknown command",
	} {
		log := daemon.NewLogWriter(io.Discard)
		c := command(log)
		if !strings.HasPrefix(args, "--root") {
			args += " --root " + t.TempDir()
		}
		c.SetArgs(strings.Fields(args))
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}
