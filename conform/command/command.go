// Package command is the suite's command line: package conform for people and for CI. `berth conform` and cni-conform have it.
package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-net/berth/conform"
)

// conforming is one run of the command.
type conforming struct {
	conform.Options
	name           string         // how people call the command, such as "berth conform"
	given          *cobra.Command // the command, with the flags that were given
	stdout, stderr io.Writer

	confs       []string // the lists
	known       string   // the file of known failures
	failOn      string
	fails       conform.Level
	expected    []conform.Known
	run, format string
	from        string // the file of a report
	self        string // how this program was called
	list        bool
	ended       int // how many checks have ended
}

// New returns the command. name is how people call it: "berth conform" in a program that has it as a subcommand, or the program's
// own name. Errors that have an exit code other than 1 are of type *Failure.
func New(name string) *cobra.Command {
	return (&conforming{name: name, self: os.Args[0]}).cobraCommand()
}

func (o *conforming) cobraCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   o.name[strings.LastIndex(o.name, " ")+1:] + " --bin-dir DIR --conf FILE.conflist",
		Short: "Test any CNI plugin against the specification, and look for leaks",
		Long: `Test CNI plugins from outside: whether they follow the specification (0.4.0 to
1.1.0), and what they leave behind after DEL, after a kill in the middle and
after a reboot. It works with any plugins, and needs nothing of Berth.

It works in fresh namespaces, as root or as any user: the machine's network and
its files stay as they are. The plugins have to keep the files that they need
between calls below a --state-dir or in /run, which are empty when a check
begins. They can write to /dev/shm, /etc, /tmp, /var/lib, /var/log and /var/tmp,
too, but that is gone afterwards; all other files are read-only to them. The exit
code is 0 if no check fails, finds a leak or is flaky, 1 if one does, and 2 if the command
could not run all checks, or judge any: a wrong command line, a missing file or an interrupt.
Each check has a level: what the specification says a plugin must do, what it should do, and
what is the suite's own. --fail-on and --known say which bad checks fail the run.`,
		Example: strings.ReplaceAll(`  NAME --bin-dir /opt/cni/bin --conf /etc/cni/net.d/10-net.conflist \
      --state-dir /var/lib/cni
  NAME --bin-dir bin --conf net.conflist --run '^leak/'      # some checks
  NAME --bin-dir bin --conf net.conflist -o junit >report.xml
  NAME --bin-dir bin --conf net.conflist --hook-dir hooks    # with a daemon: hooks/start, hooks/stop
  NAME --from report.json -o junit >report.xml               # the report of -o json in another form
  NAME --list                                                # which checks there are`, "NAME", o.name),
		PreRunE: func(*cobra.Command, []string) error { return o.prepare() },
		RunE: func(c *cobra.Command, _ []string) error {
			o.stdout, o.stderr = c.OutOrStdout(), c.ErrOrStderr()
			return o.act(c.Context())
		},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	o.given = c
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return o.wrong(err) })
	fl := c.Flags()
	fl.StringVar(&o.BinDir, "bin-dir", "", "folder that has the plugins, and those that they delegate to")
	fl.StringArrayVar(&o.confs, "conf", nil, "the network configuration list (further ones are of the same plugins, each for another cniVersion)")
	fl.StringArrayVar(&o.StateDirs, "state-dir", nil, "folder in which the plugins keep files (repeatable; default "+conform.DefaultStateDir+")")
	fl.StringVar(&o.HookDir, "hook-dir", "", `folder that has the programs "start" and "stop" for a daemon that the plugins need`)
	fl.StringVar(&o.run, "run", "", "only checks whose name matches this regular expression")
	fl.DurationVar(&o.Timeout, "timeout", conform.DefaultTimeout, "how long a plugin may take for a call")
	fl.DurationVar(&o.Grace, "grace", conform.DefaultGrace, "how long after DEL something may still be there")
	fl.IntVar(&o.Points, "points", conform.DefaultPoints, "at how many points of a verb the suite kills a plugin")
	fl.IntVar(&o.Churn, "churn", conform.DefaultChurn, "how many pods come and go in the churn check")
	fl.StringVar(&o.Ifname, "ifname", conform.DefaultIfname, "name of a pod's interface")
	fl.StringVar(&o.failOn, "fail-on", string(conform.Own), `level from which a bad check fails the run: must, should or own, which is all`)
	fl.StringVar(&o.known, "known", "", "JSON file of known failures, [{check, reason, issue}]: they fail no run, and one that passes does")
	mustComplete(c.RegisterFlagCompletionFunc("fail-on", cobra.FixedCompletions(levels(), cobra.ShellCompDirectiveNoFileComp)))
	fl.IntVar(&o.Times, "repeat", 1, "how often a bad check is judged: one that is bad at some times only is flaky")
	fl.StringVar(&o.from, "from", "", "file with a report in JSON: write it in the form of -o, and run nothing")
	fl.BoolVar(&o.list, "list", false, "list the checks, and run none")
	fl.StringVarP(&o.format, "output", "o", "table", strings.Join(conform.Formats(), ", "))
	mustComplete(c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(conform.Formats(), cobra.ShellCompDirectiveNoFileComp)))
	return c
}

// prepare checks the flags.
func (o *conforming) prepare() (err error) {
	if !conform.HasFormat(o.format) {
		return o.wrong(fmt.Errorf("-o %s: expected one of %s", o.format, strings.Join(conform.Formats(), ", ")))
	}
	if o.run != "" {
		if o.Run, err = regexp.Compile(o.run); err != nil {
			return o.wrong(fmt.Errorf("--run: %w", err))
		}
		if !slices.ContainsFunc(conform.Checks(), o.chosen) {
			return o.wrong(fmt.Errorf("--run %s: no check has such a name; `%s --list` lists the names", o.run, o.name))
		}
	}
	if o.fails, err = conform.ParseLevel(o.failOn); err != nil {
		return o.wrong(fmt.Errorf("--fail-on: %w", err))
	}
	if o.list {
		if o.format == "junit" {
			return o.wrong(errors.New("--list: expected -o table or json"))
		}
		return nil
	}
	if o.from != "" {
		return o.alone()
	}
	if o.known != "" {
		if o.expected, err = conform.ReadKnown(o.known); err != nil {
			return o.wrong(fmt.Errorf("--known: %w", err))
		}
	}
	if o.BinDir == "" || len(o.confs) == 0 {
		return o.wrong(errors.New("--bin-dir and --conf are needed"))
	}
	o.Conf, o.Others = o.confs[0], o.confs[1:]
	for _, n := range []struct {
		flag string
		ok   bool
	}{{"timeout", o.Timeout > 0}, {"grace", o.Grace > 0}, {"points", o.Points > 0}, {"churn", o.Churn > 0}, {"repeat", o.Times > 0}} {
		if !n.ok {
			return o.wrong(fmt.Errorf("--%s must be more than 0", n.flag))
		}
	}
	return nil
}

// alone returns an error if there are flags that --from has no use for: the report has been judged with others.
func (o *conforming) alone() (err error) {
	o.given.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains([]string{"from", "output", "fail-on"}, f.Name) {
			err = o.wrong(fmt.Errorf("--%s: a report is there already (--from); only --output and --fail-on go with it", f.Name))
		}
	})
	return err
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

// levels are the values of --fail-on.
func levels() (all []string) {
	for _, l := range conform.Levels() {
		all = append(all, string(l))
	}
	return all
}
