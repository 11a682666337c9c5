package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/conform"
)

// conforming is one run of `berth conform`.
type conforming struct {
	*app
	conform.Options
	given *cobra.Command // the command, with the flags that were given

	run, format string
	self        string // how this program was called
	list        bool
	ended       int // how many checks have ended
}

func (a *app) conformCommand() *cobra.Command {
	return (&conforming{app: a, self: os.Args[0]}).cobraCommand()
}

func (o *conforming) cobraCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "conform --bin-dir DIR --conf FILE.conflist",
		Short: "Test any CNI plugin against the specification, and look for leaks",
		Long: `Test CNI plugins from outside: whether they follow the specification (0.4.0 to
1.1.0), and what they leave behind after DEL, after a kill in the middle and
after a reboot. It works with any plugins, and needs nothing of Berth.

It works in fresh namespaces, as root or as any user: the machine's network and
its files stay as they are. The plugins have to keep the files that they need
between calls below a --state-dir or in /run, which are empty when a check
begins. They can write to /dev/shm, /etc, /tmp, /var/lib, /var/log and /var/tmp,
too, but that is gone afterwards; all other files are read-only to them. The exit
code is 0 if no check fails or finds a leak, 1 if one does, and 2 if the command
could not run all checks: a wrong command line, a missing file or an interrupt.`,
		Example: `  berth conform --bin-dir /opt/cni/bin --conf /etc/cni/net.d/10-net.conflist \
      --state-dir /var/lib/cni
  berth conform --bin-dir bin --conf net.conflist --run '^leak/'      # some checks
  berth conform --bin-dir bin --conf net.conflist -o junit >report.xml
  berth conform --bin-dir bin --conf net.conflist --hook-dir hooks    # with a daemon: hooks/start, hooks/stop
  berth conform --list                                                # which checks there are`,
		PersistentPreRunE: func(*cobra.Command, []string) error { return o.prepare() },
		RunE:              func(c *cobra.Command, _ []string) error { return o.judge(c.Context()) },
	}
	o.given = c
	fl := c.Flags()
	fl.StringVar(&o.BinDir, "bin-dir", "", "folder that has the plugins, and those that they delegate to")
	fl.StringVar(&o.Conf, "conf", "", "the network configuration list")
	fl.StringArrayVar(&o.StateDirs, "state-dir", nil, "folder in which the plugins keep files (repeatable; default "+conform.DefaultStateDir+")")
	fl.StringVar(&o.HookDir, "hook-dir", "", `folder that has the programs "start" and "stop" for a daemon that the plugins need`)
	fl.StringVar(&o.run, "run", "", "only checks whose name matches this regular expression")
	fl.DurationVar(&o.Timeout, "timeout", conform.DefaultTimeout, "how long a plugin may take for a call")
	fl.DurationVar(&o.Grace, "grace", conform.DefaultGrace, "how long after DEL something may still be there")
	fl.IntVar(&o.Points, "points", conform.DefaultPoints, "at how many points of a verb the suite kills a plugin")
	fl.IntVar(&o.Churn, "churn", conform.DefaultChurn, "how many pods come and go in the churn check")
	fl.BoolVar(&o.list, "list", false, "list the checks, and run none")
	fl.StringVarP(&o.format, "output", "o", "table", strings.Join(conform.Formats(), ", "))
	mustComplete(c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(conform.Formats(), cobra.ShellCompDirectiveNoFileComp)))
	return c
}

// prepare checks the flags.
func (o *conforming) prepare() (err error) {
	if !conform.HasFormat(o.format) {
		return usage{fmt.Errorf("-o %s: expected one of %s", o.format, strings.Join(conform.Formats(), ", "))}
	}
	if o.run != "" {
		if o.Run, err = regexp.Compile(o.run); err != nil {
			return usage{fmt.Errorf("--run: %w", err)}
		}
		if !slices.ContainsFunc(conform.Checks(), o.chosen) {
			return usage{fmt.Errorf("--run %s: no check has such a name; `berth conform --list` lists the names", o.run)}
		}
	}
	if o.list {
		return nil
	}
	if o.BinDir == "" || o.Conf == "" {
		return usage{errors.New("--bin-dir and --conf are needed")}
	}
	for _, n := range []struct {
		flag string
		ok   bool
	}{{"timeout", o.Timeout > 0}, {"grace", o.Grace > 0}, {"points", o.Points > 0}, {"churn", o.Churn > 0}} {
		if !n.ok {
			return usage{fmt.Errorf("--%s must be more than 0", n.flag)}
		}
	}
	return nil
}

// chosen reports whether --run chooses a check, or the check in one of the versions for which the
// suite runs it.
func (o *conforming) chosen(c conform.Check) bool {
	names := []string{c.Name}
	if c.Each {
		names = []string{c.Name + "@0.4.0", c.Name + "@1.0.0", c.Name + "@1.1.0"}
	}
	return o.Run == nil || slices.ContainsFunc(names, o.Run.MatchString)
}

// judge runs the checks, in a process with namespaces of its own, and writes the
// report.
func (o *conforming) judge(ctx context.Context) error {
	if o.list {
		o.listChecks()
		return nil
	}
	if done, code, err := conform.Enter(); done {
		if err == nil && code != 0 {
			return exit(code) // the process inside has said why
		}
		return unjudged(err)
	}
	o.Repeat = o.command
	wipe := func() {}
	if terminal := isTerminal(os.Stderr); terminal {
		o.Progress, wipe = o.overwritten, o.wipe
	} else if o.format == "table" {
		o.Progress = o.lineByLine
	}
	report, err := conform.Run(ctx, o.Options)
	wipe()
	if errors.Is(err, context.Canceled) && report != nil {
		return o.interrupted(report)
	}
	if err != nil {
		return unjudged(err)
	}
	if err := report.Write(o.stdout, o.format, o.colour); err != nil {
		return err
	}
	if !report.Clean() {
		return exit(1)
	}
	return nil
}

// unjudged gives an error the exit code for a run that could not judge the plugins.
func unjudged(err error) error {
	if err == nil {
		return nil
	}
	return coded{2, err}
}

// interrupted ends a run that was stopped before its last check. interrupted prints the results so
// far only for people: a program would take them for all results.
func (o *conforming) interrupted(report *conform.Report) error {
	if o.format == "table" && len(report.Results) > 0 {
		if err := report.Write(o.stdout, o.format, o.colour); err != nil {
			return err
		}
	}
	return unjudged(fmt.Errorf("interrupted after %d checks; they left nothing behind", len(report.Results)))
}
