package node

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

// full makes a pipe the agent's log. The pipe is full: nobody reads it.
func (a *agent) full() (read *os.File) {
	a.t.Helper()
	read, write, err := os.Pipe()
	must(a.t, err)
	a.t.Cleanup(func() { read.Close(); write.Close() })
	fd := int(write.Fd()) // Fd makes the pipe blocking, as berthd gets it
	must(a.t, unix.SetNonblock(fd, true))
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 512))
	}
	must(a.t, unix.SetNonblock(fd, false))
	a.err = write
	return read
}

// Nobody reads the agent's log, as with `berthd 2>&1 | less`, or when journald hangs: the agent
// starts, does deletions that wait, attaches, refuses, mends, detaches and ends.
func TestLogIsNotRead(t *testing.T) {
	a := newAgent(t, nil, "--pool=default=10.88.0.0/29")
	t.Cleanup(func() { a.releaseAll(); a.remove() })
	a.configure("concurrency: 4\n")
	a.start()
	pods, got := a.podsOf(3)
	a.kill()
	a.del("c0")
	a.full()
	a.start()
	nettest.Eventually(t, "the queued deletion to be done", func() bool { return len(a.list()) == 2 })
	for i := range 10 { // more than have a place at once; each is a line
		if _, err := a.exec("ADD", fmt.Sprint("taken", i), pods[1].Ref().Path); err == nil {
			t.Fatal("eth0 is attached twice")
		}
	}
	nettest.Run(t, nil, "ip link del "+got[2].host)
	nettest.Eventually(t, "the link to be mended", func() bool {
		l, err := net.InterfaceByName(got[2].host)
		return err == nil && l.Flags&net.FlagUp != 0
	})
	a.del("c1", wait)
	a.del("c2", wait)
	a.stop()
}

// Whoever read the agent's log has died: the agent lives.
func TestLogReaderDies(t *testing.T) {
	a := newAgent(t, nil, "--pool=default=10.88.0.0/29")
	t.Cleanup(func() { a.releaseAll(); a.remove() })
	read := a.full()
	read.Close()
	a.start()
	a.err.Close()
	a.podsOf(1)
	a.signal(unix.SIGHUP) // each says something
	a.del("c0", wait)
	a.stop()
}

// Each line of a JSON log is an object, also the one that says why berthd ends.
func TestLogIsJSON(t *testing.T) {
	a := startAgent(t, pools, "--log-format=json")
	a.podsOf(1)
	a.del("c0", wait)
	refused := &text{}
	second := a.berthd()
	second.Stderr = refused
	if err := runFor(second); err == nil {
		t.Error("a second agent starts")
	}
	a.stop()
	said := map[string]string{} // message to container or error
	for line := range strings.Lines(a.log.String() + refused.String()) {
		var l struct{ Time, Level, Msg, Container, Err string }
		if err := json.Unmarshal([]byte(line), &l); err != nil || l.Time == "" || l.Level == "" {
			t.Errorf("%s: %v", line, err)
		}
		said[l.Msg] = l.Container + l.Err
	}
	if said["attached"] != "c0" || said["detached"] != "c0" || !strings.Contains(said["berthd ends"], "ledger is in use") {
		t.Errorf("the log says %q", said)
	}
}
