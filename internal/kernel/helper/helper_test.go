package helper_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/helper"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

// short, in the environment, has a helper of this program end at once.
const short = "HELPER_SHORT"

func TestMain(m *testing.M) {
	if os.Args[0] == helper.Name && os.Getenv(short) != "" {
		os.Exit(1)
	}
	helper.Run()
	nettest.Main(m)
}

var must = nettest.Must

// deleter returns a Conn of the test's node whose deletions a helper makes.
func deleter(t *testing.T) (*helper.Helper, *rtnl.Conn) {
	t.Helper()
	nettest.Need(t)
	c, err := rtnl.Open(nil)
	must(t, err)
	h := &helper.Helper{Unhelped: func(err error) { t.Error("no helper: ", err) }}
	c.DeleteBy(h)
	t.Cleanup(func() {
		h.Close()
		must(t, c.Close())
	})
	return h, c
}

// patience has helpers be as quick as p until the test's end. A busy machine is to let a helper that
// runs answer in this time.
func patience(t *testing.T, p time.Duration) {
	t.Helper()
	before := *helper.Patience
	*helper.Patience = p
	t.Cleanup(func() { *helper.Patience = before })
}

// link makes a link, whose other end is a pod's eth0, up.
func link(t *testing.T, c *rtnl.Conn, name string) (at rtnl.Link, use func() (letGo func())) {
	t.Helper()
	pod := nettest.Pod(t)
	must(t, c.Do(rtnl.AddVeth(rtnl.End{Name: name}, 0, rtnl.End{Name: "eth0"}, pod.Fd()),
		rtnl.GetLink(name, &at), rtnl.SetLink(name, rtnl.Up())))
	t.Cleanup(func() { _ = c.Do(rtnl.DelLink(name)) })
	nettest.Run(t, pod, "ip link set eth0 up")
	return at, func() func() { return nettest.HoldLink(t, pod, "eth0") }
}

// remove deletes a link, and reports whether the kernel has not answered.
func remove(t *testing.T, c *rtnl.Conn, l rtnl.Link) (lingers <-chan struct{}) {
	t.Helper()
	lingers, err := c.Delete(rtnl.DelLinkAt(l.Index), l.Index)
	must(t, err)
	if err := c.Do(rtnl.GetLinkAt(l.Index, &l)); !errors.Is(err, kernel.ErrNotFound) {
		t.Errorf("%s is there: %v", l.Name, err)
	}
	return lingers
}

// state returns a process's state, as /proc/PID/stat has it; "": there is no such process.
func state(pid int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	return rest[:1]
}

// A helper deletes links. The kernel's answers come as without a helper.
func TestDelete(t *testing.T) {
	h, c := deleter(t)
	if h.Pid() != 0 {
		t.Error("a helper runs before it is needed")
	}
	late := 0
	for i := range 20 {
		l, _ := link(t, c, fmt.Sprint("gone", i))
		if lingers := remove(t, c, l); lingers != nil { // the kernel is busy with others' links
			late++
			<-lingers
		}
		if _, err := c.Delete(rtnl.DelLinkAt(l.Index), l.Index); !errors.Is(err, kernel.ErrNotFound) {
			t.Errorf("a link that is gone: %v", err)
		}
	}
	if late == 20 {
		t.Error("the kernel has answered no deletion at once")
	}
	pid := h.Pid()
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err != nil || strings.TrimSpace(string(name)) != helper.Name {
		t.Errorf("the process's name is %q: %v", name, err)
	}
	h.Close()
	if s := state(pid); s != "" {
		t.Errorf("the helper is in state %s after Close", s)
	}
	if err := h.Send(0, nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A program uses a link that the helper has deleted. The next link is deleted all the same, although the
// helper is killed and cannot end.
func TestKilledWhileTheKernelWaits(t *testing.T) {
	patience(t, time.Second)
	h, c := deleter(t)
	h.Unhelped = nil // on a busy machine the next helper may be late, too
	l, use := link(t, c, "held")
	letGo := use()
	lingers := remove(t, c, l)
	if lingers == nil {
		t.Fatal("the kernel has answered")
	}
	first := h.Pid()
	must(t, unix.Kill(first, unix.SIGKILL))
	nettest.Eventually(t, "the helper is a zombie, or its first thread waits for the kernel", func() bool {
		s := state(first)
		return s == "Z" || s == "D"
	})
	l, _ = link(t, c, "free")
	nettest.Eventually(t, "the link is deleted", func() bool {
		_, err := c.Delete(rtnl.DelLinkAt(l.Index), l.Index)
		return errors.Is(err, kernel.ErrNotFound)
	})
	letGo()
	nettest.Eventually(t, "the first helper is gone", func() bool { return state(first) == "" })
	<-lingers
}

// Somebody stops the helper, or kills it, while the kernel does not answer the deletion of a link that a
// program uses. Until then the helper is left alone. Then it is killed, although no other message is sent.
// The deletion has not ended before the kernel has answered.
func TestLostWhileTheKernelWaits(t *testing.T) {
	patience(t, time.Second)
	for _, signal := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
		h, c := deleter(t)
		l, use := link(t, c, "held")
		letGo := use()
		lingers := remove(t, c, l)
		if lingers == nil {
			t.Fatal("the kernel has answered")
		}
		nettest.Eventually(t, "the helper answers probes", func() bool { return h.Probes() >= 2 || closed(lingers) })
		if closed(lingers) {
			t.Fatal("a helper that receives messages was killed")
		}
		first := h.Pid()
		tell(t, first, signal)
		nettest.Eventually(t, "the helper is lost", h.Over)
		nettest.Eventually(t, "the helper is killed", func() bool {
			s := state(first)
			return s == "Z" || s == "D"
		})
		if closed(lingers) {
			t.Error("the deletion has ended, and the kernel has not answered")
		}
		letGo()
		nettest.Eventually(t, "the helper is gone", func() bool { return state(first) == "" })
		<-lingers
	}
}

// tell sends a signal to each thread of a process. If the process has the signal, its first thread gets it.
// This one may be the one that the kernel keeps waiting, and the others would never hear of a SIGSTOP.
func tell(t *testing.T, pid int, signal unix.Signal) {
	t.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	must(t, err)
	for _, thread := range threads {
		tid, err := strconv.Atoi(thread.Name())
		must(t, err)
		if err := unix.Tgkill(pid, tid, signal); err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
			t.Fatal(err)
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// stuck sends a message by a helper to a socket that is full. The channel has what Send returns. read makes
// room in the socket.
func stuck(t *testing.T, h *helper.Helper) (sent <-chan error, read func()) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(unix.Close(pair[0]), unix.Close(pair[1]))) })
	full := make([]byte, 4096)
	for err == nil {
		_, err = unix.SendmsgN(pair[0], full, nil, nil, unix.MSG_DONTWAIT)
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- h.Send(pair[0], full) }()
	return result, func() {
		for err := error(nil); err == nil; {
			_, _, err = unix.Recvfrom(pair[1], full, unix.MSG_DONTWAIT)
		}
	}
}

// A system call takes several times as long as the helper may take to receive a message. The helper is
// asked whether it still receives messages, and is left alone until it is stopped. When no call waits, it is
// not asked.
func TestAsked(t *testing.T) {
	patience(t, 300*time.Millisecond)
	h := &helper.Helper{Unhelped: func(err error) { t.Error("no helper: ", err) }}
	t.Cleanup(h.Close)

	sent, read := stuck(t, h)
	nettest.Eventually(t, "the helper answers probes", func() bool { return h.Probes() >= 4 || len(sent) != 0 })
	first := h.Pid()
	if len(sent) != 0 {
		t.Fatalf("a call that takes its time: %v", <-sent)
	}
	read()
	must(t, <-sent)
	if h.Asking() {
		t.Error("the helper is asked although it owes nothing")
	}

	probes := h.Probes()
	sent, _ = stuck(t, h)
	nettest.Eventually(t, "the helper answers a probe", func() bool { return h.Probes() > probes })
	if h.Pid() != first {
		t.Error("a helper that receives messages was killed")
	}
	must(t, unix.Kill(first, unix.SIGSTOP))
	nettest.Eventually(t, "the end of a stopped helper's call", func() bool { return len(sent) != 0 })
	if err := <-sent; !errors.As(err, new(*helper.LostError)) {
		t.Errorf("a stopped helper's call: %v", err)
	}
	nettest.Eventually(t, "the stopped helper is gone", func() bool { return state(first) == "" })
}

// Somebody stops the helper, or kills it. A later deletion kills what is left of it, and is made all the
// same: by another helper or, if this one is late as well, by the program itself.
func TestStoppedOrKilled(t *testing.T) {
	patience(t, 200*time.Millisecond)
	for _, signal := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
		h, c := deleter(t)
		h.Unhelped = nil
		l, _ := link(t, c, "a")
		remove(t, c, l)
		first := h.Pid()
		must(t, unix.Kill(first, signal))
		l, _ = link(t, c, "b")
		nettest.Eventually(t, "the link is deleted", func() bool {
			_, err := c.Delete(rtnl.DelLinkAt(l.Index), l.Index)
			return errors.Is(err, kernel.ErrNotFound)
		})
		nettest.Eventually(t, "the first helper is gone", func() bool { return state(first) == "" })
	}
}

// The helper does not end by the signals that end its daemon.
func TestSignalsForTheDaemon(t *testing.T) {
	h, c := deleter(t)
	l, _ := link(t, c, "a")
	remove(t, c, l)
	pid := h.Pid()
	for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
		must(t, unix.Kill(pid, s))
	}
	l, _ = link(t, c, "b")
	remove(t, c, l)
	if h.Pid() != pid {
		t.Error("a signal has ended the helper")
	}
}

// A program that cannot be its own helper, and one whose helpers end at once, make the system calls
// themselves, and say so once.
func TestNoHelper(t *testing.T) {
	for name, fail := range map[string]func(*testing.T){
		"not able":     func(t *testing.T) { t.Cleanup(helper.Unable()) },
		"ends at once": func(t *testing.T) { t.Setenv(short, "1") },
	} {
		t.Run(name, func(t *testing.T) {
			h, c := deleter(t)
			told := 0
			h.Unhelped = func(error) { told++ }
			fail(t)
			for range 2 {
				l, _ := link(t, c, "a")
				remove(t, c, l)
			}
			if told != 1 {
				t.Errorf("told %d times", told)
			}
		})
	}
}
