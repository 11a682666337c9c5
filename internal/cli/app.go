package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/root"
)

// How long the agent may take to answer.
const (
	quick    = 15 * time.Second
	patience = 3 * time.Second // for the agent's status, which the agent answers at once
)

// app is one run of the command, with its process's outputs, clock and flags.
type app struct {
	stdout, stderr io.Writer
	colour         bool // stdout is a terminal that may be coloured
	now            func() time.Time
	patience       time.Duration // for the agent's status
	// apart runs the whole command line in another process; nil: this process is already the other
	// one.
	apart func(context.Context) error

	root   string // as given, absolute once prepared
	output string // "", wide or json
}

func newApp() *app {
	return &app{
		stdout: os.Stdout, stderr: os.Stderr, now: time.Now, patience: patience,
		colour: isTerminal(os.Stdout) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb", // no-color.org
	}
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// prepare checks the flags that all subcommands have.
func (a *app) prepare(*cobra.Command, []string) (err error) {
	switch a.output {
	case "", "wide", "json":
	default:
		return usage{fmt.Errorf("-o %s: expected wide or json", a.output)}
	}
	if a.root == "" {
		return usage{fmt.Errorf("--root is empty")}
	}
	a.root, err = filepath.Abs(a.root)
	return err
}

func (a *app) dir() root.Dir { return root.Dir(a.root) }

func (a *app) wide() bool { return a.output == "wide" }

// ask calls f with a client of the agent, and with a context that ends after quick.
func (a *app) ask(ctx context.Context, f func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	c := client.New(a.dir().Socket())
	defer c.Close()
	return f(ctx, c)
}

// hangs runs a command that may hang for good in a process of its own: see apart.
func (a *app) hangs(ctx context.Context, command func(context.Context) error) error {
	if a.apart != nil {
		return a.apart(ctx)
	}
	return command(ctx)
}

// print prints value as JSON with -o json, and else calls people.
func (a *app) print(value any, people func()) error {
	if a.output != "json" {
		people()
		return nil
	}
	out := json.NewEncoder(a.stdout)
	out.SetIndent("", "  ")
	return out.Encode(value)
}

// say prints for people. It ignores errors: a reader who has left needs no answer.
func (a *app) say(format string, args ...any) { _, _ = fmt.Fprintf(a.stdout, format, args...) }

// none tells people, on stderr, that a list is empty: scripts do not read stderr.
func (a *app) none(format string, args ...any) { _, _ = fmt.Fprintf(a.stderr, format+"\n", args...) }
