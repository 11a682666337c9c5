package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/conform/oracle"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/crash/killer"
)

// patience is how long anything may take that does not depend on a killed program. patience is
// far longer than anything takes, for noisy machines.
const patience = 60 * time.Second

// Pools of a world. Addresses rest for longer than a run can last, so that no address may
// be given twice.
const (
	pools4 = "pools:\n  - name: default\n    cidrs: [10.88.0.0/16]\ncooldown: 1h\n"
	pools6 = "pools:\n  - name: default\n    cidrs: [10.88.0.0/16, \"fd00:88::/64\"]\ncooldown: 1h\n"
)

// world is a node with an agent that gets killed, and what the run knows of the node and the agent.
type world struct {
	bin   string // folder of Berth's programs
	conf  string // berthd.yaml
	root  root.Dir
	node  *ns.Netns
	pods  []*pod
	api   *client.Client
	log   *os.File // berthd's log
	agent *killer.Process
	*others

	virgin nettest.State // the node before the agent was ever started
	base   nettest.State // the node with an agent and no pod
	files  nettest.State // the files below root, with an agent and no pod
	own    int           // how many owners the agent itself has

	cooldown time.Duration // the pools' cooldown
	deaths   atomic.Int64  // how many programs were killed so far

	mu    sync.Mutex
	seen  map[netip.Addr]time.Time // when each address was last in use
	holds map[netip.Addr]string    // addresses in use, by container
	there map[string]bool          // ids of attachments that were there
}

// worlds numbers the worlds of a run.
var worlds struct {
	sync.Mutex
	n int
}

// newWorld makes a node, and a root without an agent.
func newWorld(bin, conf string) (w *world, err error) {
	worlds.Lock()
	worlds.n++
	name := fmt.Sprintf("crash%d", worlds.n)
	worlds.Unlock()
	w = &world{bin: bin, conf: conf, root: root.Dir("/run/" + name), cooldown: time.Hour, seen: map[netip.Addr]time.Time{}, holds: map[netip.Addr]string{}, there: map[string]bool{}}
	w.api = client.New(w.root.Socket())
	if err := os.MkdirAll(filepath.Dir(w.root.Config()), 0o700); err != nil {
		return w, err
	}
	if err := os.WriteFile(w.root.Config(), []byte(conf), 0o600); err != nil {
		return w, err
	}
	if w.log, err = os.Create("/run/" + name + ".log"); err != nil {
		return w, err
	}
	if err := w.newNode(); err != nil {
		return w, err
	}
	w.virgin, err = nettest.Look(w.node)
	return w, err
}

// newNode makes the node's network namespace, at first and after a reboot.
func (w *world) newNode() (err error) {
	w.node, err = makeNetns(filepath.Base(string(w.root)) + "-node")
	if err != nil {
		return err
	}
	return w.node.Do(nettest.LoopbackUp)
}

// close ends the world.
func (w *world) close() error {
	var errs []error
	if w.agent != nil {
		errs = append(errs, w.agent.Kill())
	}
	errs = append(errs, w.stopRunner())
	w.api.Close()
	for _, p := range w.pods {
		errs = append(errs, p.delete())
	}
	if w.node != nil {
		errs = append(errs, w.removeLocks(), w.node.Delete())
	}
	if w.log != nil {
		errs = append(errs, w.log.Close(), os.Remove(w.log.Name()))
	}
	return errors.Join(append(errs, os.RemoveAll(string(w.root)))...)
}

// removeLocks removes the lock files of killed agents. A killed agent leaves its lock file
// until the next agent of its instance ends, or until the node is rebooted.
func (w *world) removeLocks() error {
	left, err := filepath.Glob(fmt.Sprintf("/run/berth-*-%d.lock", w.node.Ref().Ino))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// makeNetns is `ip netns add NAME`.
func makeNetns(name string) (*ns.Netns, error) {
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		return nil, err
	}
	return ns.New("/run/netns/" + name)
}

// berthd returns the command that runs the world's agent.
func (w *world) berthd(args ...string) killer.Command {
	return killer.Command{
		Netns:  w.node.Ref().Path,
		Path:   filepath.Join(w.bin, "berthd"),
		Args:   append([]string{"--root", string(w.root)}, args...),
		Stderr: w.log,
	}
}

// start starts the agent and waits until it serves, or until the judge has it killed.
func (w *world) start(judge killer.Judge) error {
	w.api.Close()
	p, err := killer.Start(w.berthd(), judge)
	if err != nil {
		return err
	}
	w.agent = p
	return w.serving()
}

// errGone says that the agent has ended, which is to be expected if the run kills the agent.
var errGone = errors.New("the agent is gone")

// serving waits until the agent serves.
func (w *world) serving() error {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond / 2) {
		if w.agent.Gone() {
			return errGone
		}
		if h, err := w.api.Health(context.Background()); err == nil && h.Serving {
			return nil
		}
	}
	return errors.New("the agent does not serve")
}

// restart starts the agent again, which has to succeed.
func (w *world) restart() error {
	if err := w.start(nil); err != nil {
		return fmt.Errorf("starting the agent again: %w\n%s", err, w.lastWords())
	}
	return nil
}

// stop ends the agent by SIGTERM.
func (w *world) stop() error {
	status, err := w.agent.End(unix.SIGTERM)
	if err == nil && (!status.Exited() || status.ExitStatus() != 0) {
		err = fmt.Errorf("the agent ends with status %#x\n%s", status, w.lastWords())
	}
	return err
}

// remove runs `berthd --remove`.
func (w *world) remove(judge killer.Judge) (unix.WaitStatus, error) {
	clear(w.there) // berthd --remove removes the history, too
	p, err := killer.Start(w.berthd("--remove"), judge)
	if err != nil {
		return 0, err
	}
	return p.Wait(patience)
}

// settle notes the state of the world with an agent and no pod. Later looks are compared
// with this state.
func (w *world) settle() (err error) {
	if w.base, err = nettest.Look(w.node); err != nil {
		return err
	}
	if err := w.spared(); err != nil {
		return err
	}
	if w.files, err = oracle.Files(string(w.root)); err != nil {
		return err
	}
	l, err := w.api.Ledger(context.Background())
	w.own = len(l.Owners)
	return err
}

// spared waits until the agent has emptied the deletion queue and made all its spare files.
func (w *world) spared() error {
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		s, err := deletions.Look(w.root)
		if err != nil || len(s.Pending) == 0 && s.Spares == deletions.Spares {
			return err
		}
		if w.agent.Gone() {
			return errGone
		}
		if time.Now().After(end) {
			return left("the deletion queue has %d spare files, and %+v", s.Spares, s.Pending)
		}
	}
}

// lastWords returns the end of the agent's log.
func (w *world) lastWords() string {
	raw, _ := os.ReadFile(w.log.Name())
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return strings.Join(lines[max(0, len(lines)-8):], "\n")
}

// list returns the attachments.
func (w *world) list() ([]api.Attachment, error) {
	return w.api.List(context.Background(), api.Filter{})
}
