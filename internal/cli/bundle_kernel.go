package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/conform/oracle"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/stamp"
)

// kernelHas returns a part with what the kernel has of one sort: a section of the oracle (package
// conform/oracle), which knows nothing of the ledger.
func kernelHas(section string) func(context.Context, io.Writer) error {
	return func(_ context.Context, w io.Writer) error {
		state, err := oracle.LookAt(section)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(w, state)
		return err
	}
}

// writeSysctls leaves out the secret from which the kernel makes addresses
// (net.ipv6.conf.*.stable_secret).
func writeSysctls(_ context.Context, w io.Writer) error {
	state, err := oracle.LookAt("sysctl")
	if err != nil {
		return err
	}
	for line := range strings.Lines(state.String()) {
		if !strings.Contains(line, "stable_secret") {
			_, _ = io.WriteString(w, line)
		}
	}
	return nil
}

// neighbourStates are the NUD_ constants as ip(8) writes them.
var neighbourStates = map[int]string{
	netlink.NUD_INCOMPLETE: "incomplete", netlink.NUD_REACHABLE: "reachable", netlink.NUD_STALE: "stale", netlink.NUD_DELAY: "delay",
	netlink.NUD_PROBE: "probe", netlink.NUD_FAILED: "failed", netlink.NUD_NOARP: "noarp", netlink.NUD_PERMANENT: "permanent",
}

// writeNeighbours also writes the neighbours that the kernel has learnt, which the oracle leaves
// out: the entry of a gateway says whether the node reaches the gateway.
func writeNeighbours(_ context.Context, w io.Writer) error {
	all, err := netlink.NeighList(0, 0)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // a list that changes is good enough
		return fmt.Errorf("listing neighbours: %w", err)
	}
	for _, n := range all {
		state := neighbourStates[n.State]
		if state == "" {
			state = fmt.Sprintf("state %#x", n.State)
		}
		_, _ = fmt.Fprintf(w, "neighbour %s dev %d lladdr %s %s\n", n.IP, n.LinkIndex, n.HardwareAddr, state)
	}
	return nil
}

// writeTables writes the agent's table with all rules, and everybody's base chains: others'
// rules may say what is nobody's business.
func (a *app) writeTables(_ context.Context, w io.Writer) error {
	chains, err := nft.BaseChains()
	if err != nil {
		return err
	}
	for _, c := range chains {
		_, _ = fmt.Fprintln(w, c)
	}
	raw, err := root.ReadFile(a.dir().Instance())
	if err != nil {
		return fmt.Errorf("reading the agent's instance: %w", err)
	}
	state, err := oracle.LookAtTable(stamp.Table(strings.TrimSpace(string(raw))))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, state)
	return err
}

// writeConntrack writes figures, and no connections: they would say whom pods speak with.
func writeConntrack(_ context.Context, w io.Writer) error {
	var errs []error
	for _, path := range []string{
		"/proc/sys/net/netfilter/nf_conntrack_count", "/proc/sys/net/netfilter/nf_conntrack_max",
		"/proc/sys/net/netfilter/nf_conntrack_buckets", "/proc/thread-self/net/stat/nf_conntrack",
	} {
		raw, err := os.ReadFile(path)
		errs = append(errs, err)
		_, _ = fmt.Fprintf(w, "%s\n%s", path, raw)
	}
	return errors.Join(errs...)
}

// writeNamespaces writes the names of network namespaces, and where namespaces are mounted.
func writeNamespaces(_ context.Context, w io.Writer) error {
	for _, dir := range []string{"/run/netns", "/var/run/docker/netns"} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // most nodes lack one of the two folders
		}
		for _, e := range entries {
			_, _ = fmt.Fprintln(w, filepath.Join(dir, e.Name()))
		}
	}
	state, err := oracle.Mounts()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, state)
	return err
}
