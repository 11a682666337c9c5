package killer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

// envTarget is set for the test program that is to be killed, to the folder in which it
// works.
const envTarget = "KILLER_TEST_TARGET"

func TestMain(m *testing.M) {
	Board()
	if dir, ok := os.LookupEnv(envTarget); ok {
		if err := target(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	nettest.Main(m)
}

// steps are what the target does, one after the other, each in a goroutine of its own, so
// that the test shows that calls of all threads are counted together.
var steps = []struct {
	call string
	do   func(dir string) error
	done func(dir string) bool
}{
	{"create a", func(dir string) error {
		f, err := os.Create(dir + "/a")
		if err == nil {
			f.Close()
		}
		return err
	}, exists("a")},
	{"rename a to b", func(dir string) error { return os.Rename(dir+"/a", dir+"/b") }, exists("b")},
	{"mkdir d", func(dir string) error { return os.Mkdir(dir+"/d", 0o700) }, exists("d")},
	{"sendto RTM_NEWLINK", func(string) error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "killed0"}, PeerName: "killed1"})
	}, linked},
	{"unlink b", func(dir string) error { return unix.Unlink(dir + "/b") }, func(dir string) bool { return !exists("b")(dir) }},
}

func exists(name string) func(string) bool {
	return func(dir string) bool {
		_, err := os.Lstat(filepath.Join(dir, name))
		return err == nil
	}
}

func linked(string) bool {
	_, err := netlink.LinkByName("killed0")
	return err == nil
}

func target(dir string) error {
	for _, s := range steps {
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { err = s.do(dir) })
		wg.Wait()
		if err != nil {
			return err
		}
	}
	return nil
}

// run runs the target in a new folder, with one verdict at the nth call.
func run(t *testing.T, n int, v Verdict) (dir string, calls []string, p *Process) {
	t.Helper()
	dir = t.TempDir()
	if linked("") {
		l, err := netlink.LinkByName("killed0")
		if err == nil {
			err = netlink.LinkDel(l)
		}
		nettest.Must(t, err)
	}
	var mu sync.Mutex
	exe, err := os.Executable()
	nettest.Must(t, err)
	p, err = Start(Command{Path: exe, Env: append(os.Environ(), envTarget+"="+dir), Stderr: os.Stderr}, func(c Call) Verdict {
		mu.Lock()
		defer mu.Unlock()
		if c.Answer {
			return Verdict{}
		}
		if calls = append(calls, c.String()); len(calls) == n {
			return v
		}
		return Verdict{}
	})
	nettest.Must(t, err)
	if v.Do != Hold {
		if _, err := p.Wait(nettest.Deadline); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	return dir, slices.Clone(calls), p
}

// Each call is seen once and in order. A kill before a call prevents its effect, and a kill
// after it does not.
func TestKill(t *testing.T) {
	nettest.Need(t)
	_, calls, p := run(t, 0, Verdict{})
	var want []string
	for _, s := range steps {
		want = append(want, s.call)
	}
	if diff := cmp.Diff(want, calls); diff != "" || p.status.ExitStatus() != 0 {
		t.Fatalf("exit status %v, calls (-want +got):\n%s", p.status, diff)
	}
	for i, s := range steps {
		for _, v := range []Verdict{{Do: KillBefore}, {Do: KillAfter}} {
			dir, calls, p := run(t, i+1, v)
			if !p.status.Signaled() || p.status.Signal() != unix.SIGKILL || len(calls) != i+1 {
				t.Errorf("%s %s: status %v after %q", v, s.call, p.status, calls)
			}
			if done := s.done(dir); done != (v.Do == KillAfter) {
				t.Errorf("%s %s: its effect is there: %v", v, s.call, done)
			}
			if i > 0 && s.call != "rename a to b" && s.call != "unlink b" && !steps[i-1].done(dir) {
				t.Errorf("%s %s: the effect of the call before is missing", v, s.call)
			}
		}
	}
}

// A call that is made to fail has no effect, and the program sees the error.
func TestFail(t *testing.T) {
	nettest.Need(t)
	if !CanFail {
		t.Skip("system calls can be made to fail on amd64 only")
	}
	for i, s := range steps {
		dir, calls, p := run(t, i+1, Verdict{Fail, unix.ENOBUFS})
		if len(calls) != i+1 || p.status.ExitStatus() != 1 || s.done(dir) {
			t.Errorf("failing %s: status %v, effect %v, calls %q", s.call, p.status, s.done(dir), calls)
		}
	}
}

// A call that is held never happens: the program is killed before.
func TestHold(t *testing.T) {
	nettest.Need(t)
	dir, _, p := run(t, 3, Verdict{Do: Hold})
	nettest.Eventually(t, "the call before", func() bool { return exists("b")(dir) })
	if p.Gone() {
		t.Error("it is gone")
	}
	if err := p.Kill(); err != nil || exists("d")(dir) {
		t.Errorf("%v; the call that was held is done: %v", err, exists("d")(dir))
	}
}

// messages returns the types of netlink messages, and tells them from other bytes.
func TestMessages(t *testing.T) {
	for _, c := range []struct {
		b    []byte
		want string
		ok   bool
	}{
		{nil, "[]", false},
		{[]byte("GET /v1/status HTTP/1.1\r\nHost: x"), "[]", false},
		{message(unix.RTM_NEWLINK, 5), "[16]", true},
		{append(message(unix.RTM_NEWLINK, 4), message(unix.RTM_DELLINK, 0)...), "[16 17]", true},
		{message(unix.RTM_NEWLINK, 4)[:12], "[]", false},
	} {
		types, ok := messages(c.b)
		if got := strings.ReplaceAll(fmt.Sprint(types), "[0]", ""); got != c.want || ok != c.ok {
			t.Errorf("messages(%x) = %s, %v", c.b, got, ok)
		}
	}
}

// An empty transaction of nftables changes nothing. The messages that delete a group of links have
// the same numbers, and change something.
func TestEmptyBatch(t *testing.T) {
	edges := append(message(batchBegin, 4), message(batchEnd, 4)...)
	links := append(message(unix.RTM_NEWLINK, 16), message(unix.RTM_DELLINK, 16)...)
	change := slices.Concat(message(batchBegin, 4), message(unix.NFNL_SUBSYS_NFTABLES<<8, 4), message(batchEnd, 4))
	for want, bodies := range map[bool][][]byte{true: {edges}, false: {links, change, edges[:batchEdge], nil}} {
		for _, b := range bodies {
			if got := emptyBatch(b); got != want {
				t.Errorf("emptyBatch(%x) = %v", b, got)
			}
		}
	}
}

func message(typ uint16, body int) []byte {
	b := make([]byte, unix.SizeofNlMsghdr+(body+3)&^3)
	b[0], b[4], b[5] = byte(unix.SizeofNlMsghdr+body), byte(typ), byte(typ>>8)
	return b
}
