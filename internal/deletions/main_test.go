package deletions

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// envWrite makes the test program a plugin that writes into the queue of a root, which is the
// variable's value.
const envWrite = "DELETIONS_TEST_WRITE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(envWrite); dir != "" {
		runtime.LockOSThread() // strace counts by thread
		if err := Write(root.Dir(dir), example); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("promised")
		os.Exit(0)
	}
	nettest.Main(m)
}

var must = nettest.Must

// example is a deletion with all fields set.
var example = Record{
	Network: "net", Container: "c1", Ifname: "eth0",
	Link: "babcdabcdefghij", Addresses: []string{"10.88.0.7", "fd88::7"}, Netns: "/run/netns/c1",
	Boot: "0b6ba3e7-3a37-4d2b-a4a2-3ad0e8f4d5b1", Started: 123456789012345, Cut: true,
	Reason: "connecting to /run/berth/berthd.sock: connection refused",
}

// numbered returns a deletion of some container.
func numbered(i int) Record {
	r := example
	r.Container, r.Started = "c"+strconv.Itoa(i), int64(1000+i)
	return r
}

func open(t testing.TB, dir root.Dir) *Queue {
	t.Helper()
	q, err := Open(dir)
	must(t, err)
	t.Cleanup(func() { q.Close() })
	return q
}

func mustWrite(t testing.TB, dir root.Dir, records ...Record) {
	t.Helper()
	for _, r := range records {
		must(t, Write(dir, r))
	}
}

// mustPending returns the deletions that wait, and fails the test on an error.
func mustPending(t testing.TB, q *Queue) []Entry {
	t.Helper()
	entries, err := q.Pending()
	must(t, err)
	return entries
}

// containers returns the containers of entries.
func containers(entries []Entry) string {
	var all []string
	for _, e := range entries {
		all = append(all, e.Record.Container)
	}
	return strings.Join(all, " ")
}

// files returns the names in a root's queue without those of spare files.
func files(t testing.TB, dir root.Dir) []string {
	t.Helper()
	entries, err := os.ReadDir(Path(dir))
	must(t, err)
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), sparePrefix) {
			names = append(names, e.Name())
		}
	}
	return names
}
