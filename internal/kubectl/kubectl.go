// Package kubectl is `kubectl berth`: the command berth, run beside the agents of a cluster's nodes. kubectl itself reaches
// the cluster, so the plugin has the user's contexts, credentials and proxies without knowing of any of them, and needs no more
// rights than to list pods and nodes and to exec into the agents' pods.
package kubectl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/version"
)

// Name is the name of the program that kubectl runs for `kubectl berth`.
const Name = "kubectl-berth"

// Main runs the command with its arguments and returns its exit code: 0 if berth ended with 0 on each node, 2 for a wrong
// command line, and else the greatest code of a node; 1 for a node that has no agent or cannot be reached.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	return run(ctx, args, os.Stdout, os.Stderr)
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	p := &plugin{out: out, errs: errs}
	c := p.command()
	c.SetArgs(args)
	c.SetOut(out)
	c.SetErr(errs)
	err := c.ExecuteContext(ctx)
	var code exit
	var wrong usage
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &wrong):
		fmt.Fprintf(errs, "kubectl berth: %v\nTry 'kubectl berth --help'.\n", err)
		return 2
	default:
		fmt.Fprintf(errs, "kubectl berth: %v\n", err)
		return 1
	}
}

// exit is the exit code of a command that has said all there is to say.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// usage is an error in the command line.
type usage struct{ error }

// plugin is one run of the command.
type plugin struct {
	out, errs io.Writer

	kubeconfig, context string   // kubectl's; "": as kubectl finds them
	namespace, selector string   // of the agents' pods
	nodes               []string // empty: all, or the one of the pod that the command names
}

func (p *plugin) command() *cobra.Command {
	c := &cobra.Command{
		Use:         Name + " [flags] COMMAND [ARGUMENT]...",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl berth"},
		Version:     version.Text,
		Short:       "Run a command of berth beside the agents of a cluster's nodes",
		Long: `kubectl berth runs a command of berth, such as status, audit or history, beside the agents of
a cluster's nodes: in the pods of Berth's DaemonSet, by kubectl exec. With several nodes each line begins with
the node's name, and -o json prints an object with what each node says. A command that names a pod
(NAMESPACE/NAME) runs on that pod's node alone while the cluster has the pod.`,
		Example: `  kubectl berth status
  kubectl berth --node node-1 attachments
  kubectl berth history default/web
  kubectl berth audit -o json
  kubectl berth audit --cluster`,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(c *cobra.Command, args []string) error { return p.run(c.Context(), args) },
	}
	fl := c.Flags()
	fl.SetInterspersed(false) // what stands behind COMMAND is berth's
	fl.StringVar(&p.kubeconfig, "kubeconfig", "", "kubectl's --kubeconfig")
	fl.StringVar(&p.context, "context", "", "kubectl's --context")
	fl.StringVarP(&p.namespace, "namespace", "n", "kube-system", "of the DaemonSet")
	fl.StringVarP(&p.selector, "selector", "l", "app.kubernetes.io/name=berth", "of the DaemonSet's pods")
	fl.StringSliceVar(&p.nodes, "node", nil, "a node; may be repeated (default all)")
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage{err} })
	c.Args = func(_ *cobra.Command, args []string) error { return checkArgs(args) }
	return c
}

// elsewhere are the commands that do not ask an agent, and say something about the place where they run.
var elsewhere = []string{"install", "uninstall", "demo", "conform", "completion", "help", "version"}

func checkArgs(args []string) error {
	if len(args) == 0 {
		return usage{errors.New("which command of berth, such as status?")}
	}
	if slices.Contains(elsewhere, args[0]) {
		return usage{fmt.Errorf("%s does not ask an agent: run `berth %s` where it belongs", args[0], args[0])}
	}
	return nil
}

// kubectl runs kubectl and returns what it says.
func (p *plugin) kubectl(ctx context.Context, args ...string) ([]byte, error) {
	out, err := p.start(ctx, args...).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) && len(failed.Stderr) > 0 {
		return nil, errors.New(strings.TrimSpace(string(failed.Stderr)))
	}
	return out, err
}

// start returns kubectl with arguments, for the cluster that the flags name.
func (p *plugin) start(ctx context.Context, args ...string) *exec.Cmd {
	var flags []string
	if p.kubeconfig != "" {
		flags = append(flags, "--kubeconfig="+p.kubeconfig)
	}
	if p.context != "" {
		flags = append(flags, "--context="+p.context)
	}
	return exec.CommandContext(ctx, "kubectl", append(flags, args...)...)
}
