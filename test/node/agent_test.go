package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/process"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// pools are those of an agent that needs no others.
const pools = "--pool=default=10.88.0.0/24,fd00:88::/64"

// agent is a root folder and the berthd that runs on it, or does not.
type agent struct {
	t    *testing.T
	bin  string // folder of Berth's programs
	root root.Dir
	node *ns.Netns // where it runs; nil: the test's own node
	args []string  // beyond --root
	env  []string  // beyond the test's own
	err  *os.File  // gets what berthd says in place of log
	api  *client.Client

	tableName string // of the agent's table, once a test has asked

	mu    sync.Mutex // guards the process, for tests that kill it meanwhile
	cmd   *exec.Cmd
	log   *text
	ended chan error // gets what Wait says
}

// text is a buffer that a process writes and a test reads.
type text struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.buf.Write(p)
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.buf.String()
}

// newAgent makes the root folder of an agent that does not run yet.
func newAgent(t *testing.T, node *ns.Netns, args ...string) *agent {
	t.Helper()
	nettest.Need(t)
	dir, err := os.MkdirTemp("/run", "root-") // a tmpfs of the node's own
	must(t, err)
	a := &agent{t: t, bin: programs.Own(t), root: root.Dir(dir), node: node, args: args, log: &text{}}
	a.api = client.New(a.root.Socket())
	t.Cleanup(func() {
		a.kill()
		if t.Failed() {
			t.Logf("berthd of %s said:\n%s", a.root, a.log)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return a
}

// startAgent starts an agent in the test's own node, watched.
func startAgent(t *testing.T, args ...string) *agent {
	t.Helper()
	a := newAgent(t, nil, args...)
	a.startWatched()
	return a
}

// startWatched starts an agent in the test's own node. At the test's end the
// agent gives back all that it had, and the node has to be as it was before. If
// another agent is on the node, flows do not count: they may be of its pods.
func (a *agent) startWatched() {
	t := a.t
	t.Helper()
	look := func() nettest.State { return nettest.Snapshot(t, nil).Without("sysctl") }
	if strings.Contains(look().Only("nft").String(), "berth-") {
		look = func() nettest.State { return nettest.Snapshot(t, nil).Without("sysctl", "conntrack") }
	} else if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil { // conntrack -F
		t.Fatal(err) // what an earlier test's traffic left would expire in this test
	}
	before := look()
	a.start()
	t.Cleanup(func() {
		a.releaseAll()
		a.remove()
		nettest.Same(t, before, look(), "residue")
	})
}

// berthd is the command of this root.
func (a *agent) berthd(args ...string) *exec.Cmd {
	args = append([]string{"--root", string(a.root)}, append(args, a.args...)...)
	cmd := exec.Command(filepath.Join(a.bin, "berthd"), args...)
	if a.node != nil {
		cmd = nettest.Command(a.node, cmd.Path, args...)
	}
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd
}

// start starts berthd and waits until it serves.
func (a *agent) start(args ...string) {
	a.t.Helper()
	must(a.t, a.tryStart(args...))
}

func (a *agent) tryStart(args ...string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	cmd := a.berthd(args...)
	cmd.Env = append(os.Environ(), a.env...)
	if cmd.Stderr, cmd.Stdout = a.log, a.log; a.err != nil {
		cmd.Stderr = a.err
	}
	ended := make(chan error, 1)
	began := make(chan error)
	go func() { // the thread that Pdeathsig is about has to live as long as berthd
		runtime.LockOSThread()
		err := cmd.Start()
		began <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-began; err != nil {
		return err
	}
	a.cmd, a.ended = cmd, ended
	for end := time.Now().Add(nettest.Deadline); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if h, err := a.api.Health(context.Background()); err == nil && h.Serving {
			return nil
		}
		select {
		case err := <-ended:
			ended <- err
			return fmt.Errorf("berthd of %s ended: %v", a.root, err)
		default:
		}
	}
	return fmt.Errorf("berthd of %s does not serve", a.root)
}

// signal sends a signal to the process.
func (a *agent) signal(s unix.Signal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.cmd.Process.Signal(s); err != nil {
		a.t.Errorf("%s to berthd: %v", s, err)
	}
}

// freeze has the process hang until SIGCONT.
func (a *agent) freeze() {
	a.mu.Lock()
	defer a.mu.Unlock()
	must(a.t, process.Freeze(a.cmd.Process.Pid))
}

// kill sends SIGKILL. When kill returns, the process is gone. Without a process,
// kill does nothing.
func (a *agent) kill() { a.end(unix.SIGKILL) }

// rebuildLedger is berthd --rebuild-ledger.
func (a *agent) rebuildLedger() {
	a.t.Helper()
	if out, err := a.berthd("--rebuild-ledger").CombinedOutput(); err != nil {
		a.t.Fatalf("berthd --rebuild-ledger: %v\n%s", err, out)
	}
}

// stop sends SIGTERM, and fails the test unless berthd exits with 0.
func (a *agent) stop() {
	a.t.Helper()
	if err := a.end(unix.SIGTERM); err != nil {
		a.t.Errorf("berthd ends with %v", err)
	}
}

func (a *agent) end(s unix.Signal) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cmd == nil {
		return nil
	}
	a.cmd.Process.Signal(s)
	a.cmd = nil
	select {
	case err := <-a.ended:
		a.api.Close()
		return err
	case <-time.After(nettest.Deadline):
		return errors.New("berthd does not end")
	}
}

// refused starts berthd, which has to end with an error that has all of these
// texts, and to leave the node as it is.
func (a *agent) refused(says ...string) {
	a.t.Helper()
	before := nettest.Snapshot(a.t, a.node).Without("conntrack")
	cmd := a.berthd()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.Discard, &out
	if err := runFor(cmd); err == nil {
		a.t.Fatalf("berthd starts\n%s", out.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	last := lines[len(lines)-1]
	for _, want := range append(says, "berthd: ") {
		if !strings.Contains(last, want) {
			a.t.Errorf("berthd refuses to start, but does not say %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "goroutine") {
		a.t.Errorf("berthd panics:\n%s", out.String())
	}
	nettest.Same(a.t, before, nettest.Snapshot(a.t, a.node).Without("conntrack"), "berthd refuses to start, and changes the node")
}

// runFor runs a command that has to end by itself.
func runFor(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return err
	}
	timer := time.AfterFunc(nettest.Deadline, func() { cmd.Process.Kill() })
	defer timer.Stop()
	return cmd.Wait()
}

// remove stops the agent and runs `berthd --remove`.
func (a *agent) remove() {
	a.t.Helper()
	a.end(unix.SIGTERM)
	cmd := a.berthd("--remove")
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := runFor(cmd); err != nil {
		a.t.Errorf("berthd --remove: %v\n%s", err, out.String())
	}
}

// list returns the attachments.
func (a *agent) list() []api.Attachment {
	a.t.Helper()
	return programs.List(a.t, a.api)
}

// releaseAll deletes every attachment, starting the agent if need be.
func (a *agent) releaseAll() {
	a.t.Helper()
	if a.cmd == nil {
		a.start()
	}
	programs.DetachAll(a.t, a.api)
	a.wantGone()
}

// wantGone waits until no attachment is left, and audits.
func (a *agent) wantGone() {
	a.t.Helper()
	nettest.Eventually(a.t, "all attachments to be gone", func() bool { return len(a.list()) == 0 })
	a.wantClean()
}

// wantClean runs `berth audit`.
func (a *agent) wantClean() {
	a.t.Helper()
	cmd := exec.Command(filepath.Join(a.bin, "berth"), "--root", string(a.root), "audit")
	if out, err := cmd.CombinedOutput(); err != nil {
		a.t.Errorf("berth audit: %v\n%s", err, out)
	}
}

// configure writes berthd.yaml.
func (a *agent) configure(yaml string) {
	a.t.Helper()
	programs.Configure(a.t, a.root, yaml)
}

// reload sends SIGHUP and waits for what berthd says of it.
func (a *agent) reload(says string) {
	a.t.Helper()
	a.says(says, func() { a.signal(unix.SIGHUP) })
}

// says does something and waits for what berthd says of it.
func (a *agent) says(what string, do func()) {
	a.t.Helper()
	said := strings.Count(a.log.String(), what)
	do()
	nettest.Eventually(a.t, "berthd to say: "+what, func() bool { return strings.Count(a.log.String(), what) > said })
}

// What berthd says of a SIGHUP.
const (
	inForce    = "the new configuration is in force"
	notInForce = "berthd refuses the new configuration, and keeps the one in force"
)
