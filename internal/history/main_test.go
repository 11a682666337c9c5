package history

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(envWrite); dir != "" {
		writeOn(dir)
		return
	}
	nettest.Main(m)
}

var must = nettest.Must

// rig is a history with clocks of its own.
type rig struct {
	*History
	limits Limits
	log    *strings.Builder

	mu  sync.Mutex
	now Now
}

var begun = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newRig(t testing.TB, dir string, records int) *rig {
	r := &rig{limits: Limits{Records: records, Age: 7 * 24 * time.Hour}, now: Now{begun, "boot-1", int64(time.Hour)}, log: &strings.Builder{}}
	r.open(dir)
	t.Cleanup(func() { r.Close() })
	return r
}

func (r *rig) open(dir string) {
	r.History = New(Options{Dir: dir, Limits: func() Limits { return r.limits }, Now: r.clock, Log: slog.New(slog.NewTextHandler(r.log, nil))})
}

func (r *rig) restart() {
	r.Close()
	r.open(r.Dir)
}

func (r *rig) clock() Now {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// pass lets time pass.
func (r *rig) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.Wall, r.now.Boottime = r.now.Wall.Add(d), r.now.Boottime+int64(d)
}

// step sets the wall clock.
func (r *rig) step(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.Wall = r.now.Wall.Add(d)
}

func (r *rig) reboot() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.Boot, r.now.Boottime = r.now.Boot+"+", int64(time.Second)
}

// past is the n-th attachment of a test.
func past(n int, ended time.Time) api.Past {
	ms := func(d time.Duration) *time.Time { t := ended.Add(d); return &t }
	id := fmt.Sprintf("id%d", n)
	return api.Past{
		Attachment: api.Attachment{
			ID: id, State: api.StateReleasing, Network: "net", ContainerID: "container" + strconv.Itoa(n), Ifname: "eth0",
			Netns: "/run/netns/cni-0c8b5c1e-9f0d-4c67-bb0a-6d3c5e0f4a11", Pod: &api.Pod{Namespace: "default", Name: "web-" + strconv.Itoa(n), UID: "uid-" + strconv.Itoa(n)},
			Pool: "default", Mode: "routed", Addresses: []string{fmt.Sprintf("10.88.%d.%d", n/250%250, n%250), fmt.Sprintf("fd00:88::%x", n)},
			MAC: "0a:00:00:00:00:07", MTU: 1500, HostVeth: "babcd" + id, Created: ended.Add(-time.Hour), Releasing: ms(-time.Second),
		},
		AskedBy: api.AskedDelete, CutOff: ms(-999 * time.Millisecond), Ended: &ended,
		Holds: []api.PastHold{
			{Kind: "link", What: "link babcd" + id, Released: ms(-time.Millisecond)},
			{Kind: "flows", What: "flows of 10.88.0.7", Released: ms(0), Failures: 2, Since: ms(-500 * time.Millisecond), Error: "device busy"},
		},
	}
}

func (r *rig) add(from, to int) {
	for n := from; n < to; n++ {
		r.Add(past(n, r.clock().Wall))
	}
}

// read returns the numbers of the attachments that a filter matches, as ranges.
func read(t testing.TB, r *Reader) string {
	t.Helper()
	defer r.Close()
	var text []string
	first, last := -1, -1
	end := func() {
		if first >= 0 {
			text = append(text, fmt.Sprintf("%d-%d", first, last))
		}
	}
	for {
		p, err := r.Next()
		if errors.Is(err, io.EOF) {
			end()
			return strings.Join(text, " ")
		}
		must(t, err)
		n, err := strconv.Atoi(strings.TrimPrefix(p.Attachment.ID, "id"))
		must(t, err)
		if first >= 0 && n == last-1 {
			last = n
			continue
		}
		end()
		first, last = n, n
	}
}

func (r *rig) want(t testing.TB, want string) {
	t.Helper()
	if got := read(t, r.Read(api.PastFilter{})); got != want {
		t.Errorf("the history has %q, want %q", got, want)
	}
}

// files returns the names of the segments, the oldest first, and their size together.
func files(t testing.TB, dir string) (names []string, size int64) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		info, err := e.Info()
		must(t, err)
		names, size = append(names, e.Name()), size+info.Size()
	}
	return names, size
}

// lastFile returns the path of the segment under way.
func lastFile(t testing.TB, dir string) string {
	t.Helper()
	names, _ := files(t, dir)
	return filepath.Join(dir, names[len(names)-1])
}
