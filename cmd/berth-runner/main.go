// Command berth-runner runs CNI plugins for Berth's node agent, which has not the rights that plugins
// need, and in a container does not see the node's files.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/runner"
	"github.com/berth-net/berth/internal/version"
)

type flags struct {
	root      string
	folders   []string
	processes int
	host      bool
	format    string
	level     string
}

const (
	// lastWords is how long the runner waits at its end for somebody to read the log.
	lastWords = time.Second
	// lastPlugins is how long the runner waits at its end for the plugins that run. With what follows
	// it stays below the unit's TimeoutStopSec.
	lastPlugins = 15 * time.Second
)

func main() {
	// Perhaps nobody reads the log. The signal is taken and not ignored: plugins would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	log := daemon.NewLogWriter(os.Stderr)
	err := command(log).Execute()
	if err != nil {
		fmt.Fprintln(log, "berth-runner:", err)
	}
	log.Close(lastWords)
	if err != nil {
		os.Exit(1)
	}
}

// command returns the program, which logs to a writer.
func command(log *daemon.LogWriter) *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use:   "berth-runner",
		Short: "Runs CNI plugins for Berth's node agent",
		Long: `Runs CNI plugins for Berth's node agent, as root and in the node's namespaces.

Only root and the user that berth-runner runs as can ask it, by ROOT/run/berth/runner.sock.
SIGTERM ends it when the plugins that run have ended, after 15 seconds at most.`,
		Example: `  berth-runner                                       # plugins of /opt/cni/bin
  berth-runner --host                                # in a container, with the node's process ids
  berth-runner --bin-dir /opt/cni/bin --bin-dir /usr/libexec/cni`,
		Version:       version.Text,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(*cobra.Command, []string) error { return run(f, log) },
	}
	fl := c.Flags()
	fl.StringVar(&f.root, "root", string(root.Default), "folder under which the socket lies")
	fl.StringArrayVar(&f.folders, "bin-dir", nil, "folder in which plugins may be; repeatable (default "+runner.DefaultFolder+")")
	fl.IntVar(&f.processes, "processes", 0, "plugins that run at once, 2 or more; half as many more are for deletions that come while others have all (default two for each processor)")
	fl.BoolVar(&f.host, "host", false, "run plugins in the mount namespace of process 1")
	fl.StringVar(&f.format, "log-format", daemon.LogFormats()[0], "format of the log: "+strings.Join(daemon.LogFormats(), " or "))
	fl.StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
	return c
}

// options returns what the flags say.
func (f flags) options(to *daemon.LogWriter) (o runner.Options, err error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.level)); err != nil {
		return o, fmt.Errorf("--log-level: %w", err)
	}
	if f.root == "" {
		return o, errors.New("--root is empty")
	}
	dir, err := filepath.Abs(f.root)
	if err != nil {
		return o, fmt.Errorf("--root %s: %w", f.root, err)
	}
	o = runner.Options{Root: root.Dir(dir), Folders: f.folders, Processes: f.processes}
	if f.host {
		if os.Getpid() == 1 {
			return o, errors.New("--host: process 1 is berth-runner itself: its container needs the node's process ids (hostPID)")
		}
		o.Mount = runner.HostMount
	}
	o.Log, err = to.Logger(f.format, level)
	return o, err
}

func run(f flags, to *daemon.LogWriter) error {
	o, err := f.options(to)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the runner at once, and the plugins with it
	r, err := runner.New(o)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- r.Serve() }()
	notify(o.Log, systemd.SdNotifyReady)
	o.Log.Info("serving", "root", o.Root, "version", version.Text)
	select {
	case <-ctx.Done():
	case err = <-served:
	}
	notify(o.Log, systemd.SdNotifyStopping)
	last, done := context.WithTimeout(context.Background(), lastPlugins)
	defer done()
	return errors.Join(err, r.Shutdown(last))
}

// notify tells the supervisor of a state (sd_notify(3)), and waits for nobody who does not read it.
func notify(log *slog.Logger, state string) {
	go func() {
		if _, err := systemd.SdNotify(false, state); err != nil {
			log.Warn("could not tell systemd about berth-runner's state", "err", err)
		}
	}()
}
