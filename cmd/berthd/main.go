// Command berthd is Berth's node agent: it attaches pods to the network, detaches them, and
// gives back what they held, whatever else is broken.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/internal/agent"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/helper"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/overlap"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/version"
)

type flags struct {
	root    string
	config  string
	pools   []string
	metrics string
	format  string // of the log
	moved   bool
	remove  bool
	rebuild bool
	check   bool
}

// lastWords is how long the agent waits at its end for somebody to read the log.
const lastWords = time.Second

func main() {
	helper.Run()
	// Perhaps nobody reads the agent's log, or the reader of the log has died. Neither is a
	// reason to stop working for pods.
	signal.Ignore(syscall.SIGPIPE)
	log := daemon.NewLogWriter(os.Stderr)
	var f flags
	err := remedied(command(&f, log).Execute(), os.Geteuid())
	if err != nil {
		f.sayLast(log, err)
	}
	log.Close(lastWords)
	if err != nil {
		os.Exit(1)
	}
}

// remedied adds to an error that berthd gives a plain user what this user can do about the
// error.
func remedied(err error, uid int) error {
	if uid != 0 && (errors.Is(err, fs.ErrPermission) || errors.Is(err, kernel.ErrPermission)) {
		return fmt.Errorf("%w; run it as root", err)
	}
	return err
}

// sayLast writes into the log why berthd ends.
func (f *flags) sayLast(to *daemon.LogWriter, err error) {
	if f.format == "json" {
		if log, _ := to.Logger(f.format, slog.LevelInfo); log != nil {
			log.Error("berthd ends", "err", err)
			return
		}
	}
	fmt.Fprintln(to, "berthd:", err)
}

// command returns the program, which sets f and logs to a writer.
func command(f *flags, log *daemon.LogWriter) *cobra.Command {
	c := &cobra.Command{
		Use:   "berthd",
		Short: "Berth's node agent",
		Long: `Berth's node agent.

On SIGHUP, berthd reads the configuration again. It refuses a configuration that
has an error, or a pool that overlaps a former pool still in use, or what somebody
else on the node uses: the log and "berth status" say why, and nothing changes.
It reads concurrency, metrics, tracing and logLevel only when it starts. SIGTERM
ends the agent; pods keep their network.`,
		Example: `  berthd                                             # a node's agent: /etc/berth/berthd.yaml
  berthd --root /tmp/a --pool default=10.88.0.0/16,fd00:88::/64
  berthd --check-config                              # would it start, or take SIGHUP?
  berthd --root /tmp/a --remove                      # give back what the agent itself holds`,
		Version:       version.Text,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		PreRunE:       func(*cobra.Command, []string) error { return f.place() },
		RunE:          func(c *cobra.Command, _ []string) error { return run(c.Context(), *f, log) },
	}
	fl := c.Flags()
	fl.StringVar(&f.root, "root", string(root.Default), "folder under which all of the agent's files lie")
	fl.StringVar(&f.config, "config", "", "configuration file (default ROOT/etc/berth/berthd.yaml, if that exists)")
	fl.StringArrayVar(&f.pools, "pool", nil, "pool as NAME=CIDR[,CIDR...]; repeatable, the first is the default")
	fl.StringVar(&f.metrics, "metrics", "", "TCP address for Prometheus metrics, on the loopback unless it names a host")
	fl.StringVar(&f.format, "log-format", daemon.LogFormats()[0], "format of the log: "+strings.Join(daemon.LogFormats(), " or "))
	fl.BoolVar(&f.moved, "moved", false, "start although the network namespace is not the former one, or the former state is lost; the agent gives up the pods that it had there")
	fl.BoolVar(&f.remove, "remove", false, "give back what the agent itself holds on the node, and exit; refused while pods are attached")
	fl.BoolVar(&f.rebuild, "rebuild-ledger", false, "rebuild a lost, damaged or outdated ledger from the pods' links in the kernel, and exit; the pods stay as they are")
	fl.BoolVar(&f.check, "check-config", false, "check the configuration, and whether its pools overlap what the node uses, and exit; an agent may run meanwhile")
	c.MarkFlagsMutuallyExclusive("remove", "rebuild-ledger", "check-config")
	return c
}

// place makes the root absolute. A root that is not there is an error: it is misspelt more
// often than new.
func (f *flags) place() error {
	if f.root == "" {
		return errors.New("--root is empty")
	}
	dir, err := filepath.Abs(f.root)
	if err != nil {
		return fmt.Errorf("--root %s: %w", f.root, err)
	}
	f.root = dir
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--root: %s does not exist: make it first", dir)
	case err != nil:
		return fmt.Errorf("--root: %w", err)
	case !info.IsDir():
		return fmt.Errorf("--root: %s is not a directory", dir)
	}
	return nil
}

// load reads the configuration that the flags name, for the first time or again.
func (f flags) load(again bool) (*config.Config, error) {
	return config.Load(root.Dir(f.root), config.Flags{File: f.config, Pools: f.pools, Metrics: f.metrics, Remove: f.remove, Again: again})
}

func run(_ context.Context, f flags, to *daemon.LogWriter) error {
	conf, err := f.load(false)
	if err != nil {
		return err
	}
	if f.check {
		return check(conf, root.Dir(f.root))
	}
	log, err := to.Logger(f.format, conf.LogLevel)
	if err != nil {
		return err
	}
	o := agent.Options{
		Config: conf, Version: version.Text,
		Options: daemon.Options{Root: root.Dir(f.root), Log: log, Moved: f.moved},
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the agent at once
	if f.rebuild {
		return rebuildLedger(ctx, o)
	}
	if f.remove {
		return remove(ctx, o)
	}
	return agent.Run(ctx, o, reloads(ctx, f))
}

// reloads reads the configuration again for each SIGHUP, and sends the configuration, or what is
// wrong with it.
func reloads(ctx context.Context, f flags) <-chan config.Reading {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	out := make(chan config.Reading)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hup:
			}
			c, err := f.load(true)
			select {
			case out <- config.Reading{Config: c, Err: err}:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// check reports whether an agent would start with a configuration on this node, as far as the
// configuration decides.
func check(c *config.Config, dir root.Dir) error {
	if err := c.Masquerade.MasqAgentErr; err != nil {
		return err
	}
	self, err := daemon.InstanceOf(dir)
	if err != nil {
		return err
	}
	netns, err := ns.Self()
	if err != nil {
		return err
	}
	defer netns.Close()
	conn, err := rtnl.Here()
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := overlap.Check(c.Pools, conn, overlap.Here(self, netns.Ref().Ino)); err != nil {
		return err
	}
	fmt.Println("the configuration is fine")
	return nil
}

func remove(ctx context.Context, o agent.Options) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return agent.Remove(ctx, o)
}
