// Command berth-operator shares pools of addresses out to a Kubernetes cluster's nodes.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/operator"
	"github.com/berth-net/berth/internal/version"
)

type flags struct {
	kubeconfig string
	nodes      string
	elect      bool
	namespace  string
	metrics    string
	health     string
	format     string
	level      string
}

// lastWords is how long the operator waits at its end for somebody to read the log.
const lastWords = time.Second

func main() {
	log := daemon.NewLogWriter(os.Stderr)
	err := command(log).Execute()
	if err != nil {
		fmt.Fprintln(log, "berth-operator:", err)
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
		Use:   "berth-operator",
		Short: "Shares pools of addresses out to a cluster's nodes",
		Long: `Shares pools of addresses (IPPool) out to a Kubernetes cluster's nodes, in blocks.

Several may run: one leads, and the others wait. SIGTERM ends the operator; nodes
keep their blocks, and pods are attached and detached without it.`,
		Version:       version.Text,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(*cobra.Command, []string) error { return run(f, log) },
	}
	fl := c.Flags()
	fl.StringVar(&f.kubeconfig, "kubeconfig", "", "how to reach the API server (default: as a pod of the cluster)")
	fl.StringVar(&f.nodes, "nodes", "kubernetes.io/os!=windows,type!=virtual-kubelet", "label selector of the nodes that have an agent")
	fl.BoolVar(&f.elect, "leader-elect", true, "wait until no other operator leads")
	fl.StringVar(&f.namespace, "namespace", "", "namespace of the lease of leader election (default: the pod's)")
	fl.StringVar(&f.metrics, "metrics", ":8080", "TCP address for Prometheus metrics; 0 for none")
	fl.StringVar(&f.health, "health", ":8081", "TCP address of /healthz and /readyz; 0 for none")
	fl.StringVar(&f.format, "log-format", daemon.LogFormats()[0], "format of the log: "+strings.Join(daemon.LogFormats(), " or "))
	fl.StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
	return c
}

func run(f flags, to *daemon.LogWriter) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.level)); err != nil {
		return fmt.Errorf("--log-level: %w", err)
	}
	log, err := to.Logger(f.format, level)
	if err != nil {
		return err
	}
	nodes, err := labels.Parse(f.nodes)
	if err != nil {
		return fmt.Errorf("--nodes: %w", err)
	}
	config, err := connect(f.kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	config.UserAgent = "berth-operator/" + version.Text
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the operator at once
	return operator.Run(ctx, operator.Options{
		API: config, Log: log, Nodes: nodes, Elect: f.elect, Namespace: f.namespace, Metrics: f.metrics, Health: f.health,
	})
}

// connect returns how the API server is reached.
func connect(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}
