// Go need not look whether the number of processors has changed: it stays one (package oneproc).
//
//go:debug updatemaxprocs=0

// Berth-cni is the CNI plugin: a runtime executes it once for every verb. It
// reads its environment and stdin, asks the agent, and prints what the agent
// answers; the work is the agent's.
//
// Its files in the order of a run: main, start (when the process began), plugin (dispatch), input,
// verb (what each verb asks), answer (what follows from the answer); and for DEL, while the
// agent is away, promise, cut, apart, gone, netlink and orphan. Called as loopback, the program is the plugin
// of that name (loopback). Berth-cni starts thousands of times on a node, so it links nothing that
// takes time to start, such as net (weight_test.go), and uses nothing of encoding/json but a type in
// package api.
package main

import (
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/cni/wire"
	_ "github.com/berth-net/berth/internal/oneproc"
)

func main() {
	beDeleter()
	os.Exit(mainPlugin(unix.Stdin).run())
}

// mainPlugin returns the plugin as a process runs it.
func mainPlugin(stdin int) *plugin {
	return &plugin{
		startOf: startOf,
		began:   boottime.Now(),
		name:    filepath.Base(append(os.Args, "")[0]), // a runtime may give no arguments at all
		getenv:  os.Getenv,
		stdin:   func(p []byte, deadline int64) (int, error) { return wire.ReadBefore(stdin, p, deadline) },
		typed:   isTerminal(stdin),
		stdout:  os.Stdout,
		stderr:  os.Stderr,
	}
}

// plugin is one run, with the edges of its process.
type plugin struct {
	startOf func(now int64) (started int64, parent bool) // reads when the plugin's process began, which VERSION need not know
	began   int64                                        // CLOCK_BOOTTIME in nanoseconds: when the program began; the limits of verbs count from then
	name    string                                       // that the program was called by, without its folder
	getenv  func(string) string
	stdin   func(p []byte, deadline int64) (int, error) // io.EOF at its end
	typed   bool                                        // stdin is a terminal
	stdout  io.Writer
	stderr  io.Writer
}

func isTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}
