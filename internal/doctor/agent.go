package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/root"
)

// lookAgent asks the agent for its status, as runtimes do.
func lookAgent(_ context.Context, n *Node) Finding {
	start, log := "systemctl start berthd", "journalctl -u berthd"
	if n.Root != root.Default {
		start, log = "berthd --root "+string(n.Root), "its log"
	}
	switch a := n.agent(); {
	case errors.Is(a.err, client.ErrAway):
		return Finding{Bad, a.err.Error(), start + "; if it does not stay: " + log}
	case errors.Is(a.err, context.DeadlineExceeded):
		return Finding{Bad, fmt.Sprintf("the agent (pid %d) does not answer within %s", a.pid, answerWithin),
			"look at " + log + ", make a bundle (berth bundle), and restart it"}
	case a.err != nil:
		return unknown(a.err)
	case a.cannot != nil:
		return Finding{Bad, a.cannot.Error(), "berth status"}
	case a.status.Displaced != "":
		return Finding{Bad, "the ledger: " + a.status.Displaced, "move the ledger's file back, if somebody moved it, or restart berthd, which says what to do"}
	case a.status.Restoring:
		return Finding{Warn, "the agent restores what its ledger says, and requests wait", "berth status"}
	default:
		return ok("serving, version %s, pid %d", a.status.Version, a.pid)
	}
}

// down is the finding of a check that can look at a running agent only.
func (a agent) down() Finding {
	return Finding{Verdict: Unknown, Seen: "no agent runs that could be looked at"}
}

// lookPlace compares the agent's namespaces with this process's.
func lookPlace(_ context.Context, n *Node) Finding {
	a := n.agent()
	if a.pid == 0 {
		return a.down()
	}
	for _, space := range []string{"net", "mnt"} {
		its, err := os.Readlink(a.proc("ns/" + space))
		if err != nil {
			return unknown(err)
		}
		ours, err := os.Readlink("/proc/self/ns/" + space)
		if err != nil {
			return unknown(err)
		}
		if its == ours {
			continue
		}
		f := Finding{Warn, fmt.Sprintf("the agent (pid %d) is in %s, and this program in %s", a.pid, its, ours),
			fmt.Sprintf("the other checks describe this program's namespaces: run nsenter -t %d -n -m berth doctor", a.pid)}
		return f
	}
	return ok("the agent has the network and mount namespaces of this program")
}

// needed are the capabilities that deploy/berthd.service gives the agent.
var needed = []struct {
	bit  int
	name string
}{
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"},
	{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE"}, {unix.CAP_DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH"},
}

func lookCapabilities(_ context.Context, n *Node) Finding {
	a := n.agent()
	if a.pid == 0 {
		return a.down()
	}
	text, err := n.status(a, "CapEff")
	if err != nil {
		return unknown(err)
	}
	have, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		return unknown(err)
	}
	var lacks []string
	for _, c := range needed {
		if have&(1<<c.bit) == 0 {
			lacks = append(lacks, c.name)
		}
	}
	if len(lacks) > 0 {
		all := strings.Join(lacks, " ")
		return Finding{Bad, "the agent lacks " + all, "add to the agent's unit: CapabilityBoundingSet=" + all + ", and run it as root"}
	}
	return ok("the agent has all that it needs")
}

// status returns a value of a process's /proc/PID/status.
func (n *Node) status(a agent, key string) (string, error) {
	raw, err := os.ReadFile(n.host(a.proc("status")))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(raw)) {
		if value, is := strings.CutPrefix(line, key+":"); is {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("%s has no %s", a.proc("status"), key)
}

// calls are system calls of the agent. A filter that somebody made for other programs may refuse them.
var calls = []string{"setns", "fsopen", "fsconfig", "fsmount", "fdatasync", "flock", "fallocate", "sendmsg", "recvmsg", "sendto", "recvfrom", "statx", "epoll_pwait", "futex"}

// lookSeccomp looks at the filter of the agent's unit. The kernel shows what a process's filter
// allows only to somebody who stops the process.
func lookSeccomp(ctx context.Context, n *Node) Finding {
	a := n.agent()
	if a.pid == 0 {
		return a.down()
	}
	mode, err := n.status(a, "Seccomp")
	if err != nil {
		return unknown(err)
	}
	if mode == "0" {
		return ok("the agent has no filter")
	}
	unit, err := n.unit(a)
	if err != nil {
		return unknown(err)
	}
	if unit == "" {
		return Finding{Verdict: Unknown, Seen: "the agent has a filter that is no systemd unit's",
			Fix: "look for \"operation not permitted\" in its log, and compare the filter with SystemCallFilter= in deploy/berthd.service"}
	}
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--property=SystemCallFilter", "--value", unit).Output()
	if err != nil {
		return unknown(fmt.Errorf("asking systemd for the filter of %s: %w", unit, err))
	}
	words := strings.Fields(string(out))
	if len(words) == 0 {
		return Finding{Verdict: Unknown, Seen: "the agent has a filter that is not that of " + unit,
			Fix: "look for \"operation not permitted\" in its log"}
	}
	refuses := strings.HasPrefix(words[0], "~")
	words[0] = strings.TrimPrefix(words[0], "~")
	var lacks []string
	for _, c := range calls {
		if slices.Contains(words, c) == refuses {
			lacks = append(lacks, c)
		}
	}
	if len(lacks) > 0 {
		return Finding{Bad, fmt.Sprintf("the filter of %s refuses %s", unit, strings.Join(lacks, ", ")),
			"add to " + unit + ": SystemCallFilter=" + strings.Join(lacks, " ")}
	}
	return ok("the filter of %s allows what the agent needs", unit)
}

// unit returns the systemd service that a process belongs to; "" if it belongs to none.
func (n *Node) unit(a agent) (string, error) {
	raw, err := os.ReadFile(n.host(a.proc("cgroup")))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(raw)) {
		if name := filepath.Base(strings.TrimSpace(line)); strings.HasSuffix(name, ".service") {
			return name, nil
		}
	}
	return "", nil
}
