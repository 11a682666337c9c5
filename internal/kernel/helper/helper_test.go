package helper_test

import (
	"errors"
	"fmt"
	"os"
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
	for i := range 20 {
		l, _ := link(t, c, fmt.Sprint("gone", i))
		if remove(t, c, l) != nil {
			t.Error("the kernel has not answered")
		}
		if _, err := c.Delete(rtnl.DelLinkAt(l.Index), l.Index); !errors.Is(err, kernel.ErrNotFound) {
			t.Errorf("a link that is gone: %v", err)
		}
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
	*helper.Patience = 200 * time.Millisecond
	t.Cleanup(func() { *helper.Patience = 10 * time.Second })
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

// Somebody stops the helper, or kills it. A later deletion kills what is left of it, and is made all the
// same: by another helper or, if this one is late as well, by the program itself.
func TestStoppedOrKilled(t *testing.T) {
	*helper.Patience = 200 * time.Millisecond
	t.Cleanup(func() { *helper.Patience = 10 * time.Second })
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
