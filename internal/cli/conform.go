package cli

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/conform"
)

func (a *app) conformCommand() *cobra.Command {
	o := conform.Options{}
	var run, output string
	c := &cobra.Command{
		Use:   "conform --bin-dir DIR --conf FILE.conflist",
		Short: "Hold any CNI plugin to the specification, and look for leaks",
		Long: `Judge CNI plugins from outside, by the specification (0.4.0 to 1.1.0) and by what
they leave behind: after DEL, after a kill in the middle, after a reboot. Any
plugins will do; nothing of Berth is needed.

It works in fresh namespaces, as root or as anybody, and touches neither the
machine's network nor its files. The exit code is 0 if there is neither fail nor
leak.`,
		Example: `  berth conform --bin-dir /opt/cni/bin --conf /etc/cni/net.d/10-net.conflist \
      --state-dir /var/lib/cni/networks
  berth conform --bin-dir bin --conf net.conflist --run '^leak/'      # some checks
  berth conform --bin-dir bin --conf net.conflist -o junit >report.xml
  berth conform --bin-dir bin --conf net.conflist --hook-dir hooks    # with a daemon: hooks/start, hooks/stop`,
		Args: cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) (err error) {
			if o.BinDir == "" || o.Conf == "" {
				return usage{errors.New("--bin-dir and --conf are needed")}
			}
			if !conform.HasFormat(output) {
				return usage{fmt.Errorf("-o %s: there are %s", output, strings.Join(conform.Formats(), ", "))}
			}
			if run != "" {
				if o.Run, err = regexp.Compile(run); err != nil {
					return usage{fmt.Errorf("--run: %w", err)}
				}
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			if done, code, err := conform.Enter(); done {
				if err == nil {
					os.Exit(code)
				}
				return err
			}
			report, err := conform.Run(c.Context(), o)
			if err != nil {
				return err
			}
			for _, r := range report.Results {
				fmt.Println(r.Outcome, r.Check, r.Took, strings.Join(r.Seen, "\n"), r.Notes)
			}
			return nil
		},
	}
	fl := c.Flags()
	fl.StringVar(&o.BinDir, "bin-dir", "", "where the plugins are, and those that they delegate to")
	fl.StringVar(&o.Conf, "conf", "", "the network configuration list")
	fl.StringArrayVar(&o.StateDirs, "state-dir", nil, "a folder of the plugins' files (repeatable)")
	fl.StringVar(&o.HookDir, "hook-dir", "", `programs "start" and "stop" of a daemon that the plugins need`)
	fl.StringVar(&run, "run", "", "only checks whose name matches this regular expression")
	fl.StringVarP(&output, "output", "o", "table", strings.Join(conform.Formats(), ", "))
	return c
}
