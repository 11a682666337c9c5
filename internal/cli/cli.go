// Package cli is the berth command: one file a subcommand, and what they share
// in app.go (the edges of the process), errors.go, table.go, format.go and
// choose.go (which attachments an argument names).
package cli

import (
	"context"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/version"
)

// Main runs the command with its arguments and returns its exit code: 0 for a
// good answer, 1 for a bad one or a failure, 2 for a wrong command line, and
// for an audit that could not be made.
func Main(args []string) int {
	ctx, stop := untilSignal()
	defer stop()
	a := newApp()
	if os.Getenv(envApart) == "" {
		a.apart = func(ctx context.Context) error { return apart(ctx, args) }
	}
	code := a.run(ctx, args)
	tell(code)
	return code
}

// untilSignal returns a context that ends with a signal to end, or if the terminal goes away. A
// command that nohup runs hears nothing of its terminal.
func untilSignal() (context.Context, context.CancelFunc) {
	ends := []os.Signal{os.Interrupt, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) {
		ends = append(ends, unix.SIGHUP)
	}
	return signal.NotifyContext(context.Background(), ends...)
}

// run is Main with the outputs and the clock of a.
func (a *app) run(ctx context.Context, args []string) int {
	c := a.command()
	c.SetArgs(args)
	c.SetOut(a.stdout)
	c.SetErr(a.stderr)
	ran, err := c.ExecuteContextC(ctx)
	return a.report(ran, err)
}

// Command returns the command with its subcommands, to describe it.
func Command() *cobra.Command { return newApp().command() }

func (a *app) command() *cobra.Command {
	c := &cobra.Command{
		Use:     "berth",
		Version: version.Text,
		Short:   "Show and steer Berth's node agent",
		Long: `berth shows and steers berthd, the node agent that attaches pods to the network
and takes them off it, and installs its CNI plugin.`,
		Example: `  berth status                       # how the agent is; works when it is down, too
  berth attachments                  # which pods it has attached
  berth history default/web          # what became of a pod, also if it is gone
  berth owed                         # what could not be given back yet, and why
  berth audit                        # exit code 0: nothing is left over or missing
  berth doctor                       # what is wrong with this node, and how to fix it
  berth demo                         # see it work, in namespaces of its own`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: a.prepare,
	}
	fl := c.PersistentFlags()
	fl.StringVar(&a.root, "root", string(root.Default), "the agent's --root")
	fl.StringVarP(&a.output, "output", "o", "", "wide (more columns) or json")
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage{err} })
	mustComplete(c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"wide", "json"}, cobra.ShellCompDirectiveNoFileComp)))
	c.AddCommand(
		a.statusCommand(), a.attachmentsCommand(), a.showCommand(), a.releaseCommand(), a.gcCommand(), a.adoptCommand(), a.checkCommand(),
		a.owedCommand(), a.poolsCommand(), a.healthCommand(), a.eventsCommand(), a.historyCommand(), a.ledgerCommand(), a.auditCommand(),
		a.doctorCommand(), a.bundleCommand(), a.installCommand(), a.uninstallCommand(), a.demoCommand(), a.conformCommand(),
		a.versionCommand(),
	)
	for _, sub := range c.Commands() {
		sub.Args = usageArgs(sub.Args)
	}
	return c
}

// mustComplete panics on an error of registering a completion. Only a mistake in this
// package causes one: a flag that does not exist, or has a completion already.
func mustComplete(err error) {
	if err != nil {
		panic("cli: " + err.Error())
	}
}
