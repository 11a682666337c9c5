package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/root"
)

// Node is the node that checks look at: the one that the program runs on.
type Node struct {
	Root    root.Dir // the agent's
	BinDir  string   // folder in which the runtime looks for CNI plugins
	ConfDir string   // folder in which the runtime looks for CNI configurations
	Blind   error    // why BinDir and ConfDir are a guess; nil: somebody has named them
	Host    string   // prefix of the paths of others' files, such as /etc/systemd; "" on a node

	agent  func() agent
	config func() config.Reading
}

// New returns the node as the agent of a root sees it.
func New(dir root.Dir, binDir, confDir string) *Node {
	n := &Node{Root: dir, BinDir: binDir, ConfDir: confDir}
	n.agent = sync.OnceValue(n.ask)
	n.config = sync.OnceValue(n.read)
	return n
}

// agent is what is known of the agent.
type agent struct {
	pid    int // in this process's pid namespace; 0: no agent listens, or this process cannot see the agent
	status api.Status
	cannot *api.Error // why the agent cannot attach pods
	err    error      // why there is no status
}

func (a agent) up() bool { return a.err == nil }

// answerWithin is how long the agent may take for its status, which it answers at once.
const answerWithin = 3 * time.Second

func (n *Node) ask() (a agent) {
	ctx, cancel := context.WithTimeout(context.Background(), answerWithin)
	defer cancel()
	a.pid, a.err = client.Listener(ctx, n.Root.Socket())
	if a.err != nil {
		return a
	}
	c := client.New(n.Root.Socket())
	defer c.Close()
	a.status, a.err = c.Status(ctx, "")
	if errors.As(a.err, &a.cannot) && a.status.PID != 0 { // the status is complete all the same
		a.err = nil
	}
	return a
}

// read reads the configuration. The pools of a running agent, which flags may have given to
// it, are pools of the configuration, too.
func (n *Node) read() config.Reading {
	c, err := config.Load(n.Root, config.Flags{Pools: n.agentPools()})
	return config.Reading{Config: c, Err: err}
}

// agentPools returns the running agent's pools as --pool has them, but for those to which the file gives a segment, which no flag can.
func (n *Node) agentPools() (flags []string) {
	segment := map[string]bool{}
	if file, err := config.Load(n.Root, config.Flags{Remove: true}); err == nil { // otherwise read has the error, too
		for _, p := range file.Pools {
			segment[p.Name] = p.Segment != nil
		}
	}
	for _, p := range n.agent().status.Pools {
		if segment[p.Name] {
			continue
		}
		var cidrs []string
		for _, c := range p.CIDRs {
			if !c.Draining {
				cidrs = append(cidrs, c.CIDR)
			}
		}
		if len(cidrs) > 0 {
			flags = append(flags, p.Name+"="+strings.Join(cidrs, ","))
		}
	}
	return flags
}

// pools returns the CIDRs of the pools that have no segment; none if the configuration cannot be read.
func (n *Node) pools() (all []netip.Prefix) {
	if c := n.config().Config; c != nil {
		for _, p := range c.Pools {
			if p.Segment == nil {
				all = append(all, p.CIDRs...)
			}
		}
	}
	return all
}

// families returns which families the pools have.
func (n *Node) families() (v4, v6 bool) {
	for _, p := range n.pools() {
		v4, v6 = v4 || p.Addr().Is4(), v6 || !p.Addr().Is4()
	}
	return v4, v6
}

// host returns the path of somebody else's file on the node.
func (n *Node) host(path string) string { return filepath.Join("/", n.Host, path) }

// proc returns the path of a file of the agent's in /proc.
func (a agent) proc(file string) string { return filepath.Join("/proc", strconv.Itoa(a.pid), file) }

// remedy says what to do about an error that kept a check from looking.
func remedy(err error) string {
	switch {
	case !errors.Is(err, fs.ErrPermission) && !errors.Is(err, kernel.ErrPermission):
		return ""
	case os.Geteuid() == 0:
		return "run berth doctor as root of the node itself, not of a container"
	}
	return "run berth doctor as root"
}
