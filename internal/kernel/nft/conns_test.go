package nft

import (
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/nettest"
)

// As long as somebody watches, neither transactions nor reads wait until a socket is
// closed. An error of one transaction does not reach the next, and no socket stays open at the end.
func TestConns(t *testing.T) {
	tables := Open(nettest.Node(t))
	r := sample()
	must(t, tables.Replace(r))
	if tables.conns.writer != nil || tables.conns.reader != nil {
		t.Error("open, and nobody watches")
	}
	w, err := tables.Watch(r.Instance)
	must(t, err)
	writer, reader := tables.conns.writer, tables.conns.reader
	var all sync.WaitGroup
	for range 4 { // only one of them gets the open sockets
		all.Go(func() {
			for range 10 {
				if err := tables.Replace(r); err != nil {
					t.Error(err)
				}
				wantWhole(t, tables, r)
			}
		})
	}
	all.Wait()
	must(t, tables.Replace(r))
	if tables.conns.writer == nil || tables.conns.reader == nil || writer == nil || reader == nil {
		t.Error("nothing is open, and somebody watches")
	}

	no := errors.New("no")
	err = tables.transact(func(req *request) {
		req.deleteTable(r.Table())
		req.err = no
	})
	if !errors.Is(err, no) {
		t.Fatal(err)
	}
	other := r
	other.Instance = "jihgfedcba"
	for range 2 {
		must(t, tables.Replace(other))
	}
	must(t, tables.Delete("jihgfedcba")) // there is no such table: the kernel refuses
	if _, err := tables.Verify(r); err != nil {
		t.Errorf("what was given up: %v", err)
	}
	if err := tables.Replace(r); err != nil {
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if tables.conns.writer != nil || tables.conns.reader != nil {
		t.Error("open, and nobody watches any more")
	}
}

// The process has no file descriptor left for a socket. Requests fail, and say why; when there are
// descriptors again they work.
func TestNoDescriptors(t *testing.T) {
	tables := Open(nettest.Node(t))
	next, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err, unix.Close(next))
	var was unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	few := unix.Rlimit{Cur: uint64(next) + 1, Max: was.Max} // enough for entering a namespace
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	_, mapped := tables.Mapped("instance22")
	replaced := tables.Replace(sample())
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	for _, err := range []error{mapped, replaced} {
		if !errors.Is(err, unix.EMFILE) || !errors.Is(err, kernel.ErrExhausted) {
			t.Errorf("without descriptors: %v", err)
		}
	}
	must(t, tables.Replace(sample()))
}
