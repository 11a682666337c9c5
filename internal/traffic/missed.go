package traffic

import (
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/patience"
)

// missed is whether the rules were missing, until a pass over connection tracking has made up for it.
// An agent that is killed before that pass leaves a mark in the run folder (root.Dir.Missed):
// the next agent finds the table as it should be, and would not know what began without it.
type missed struct {
	mu    sync.Mutex
	now   bool // the rules were missing, and no pass has begun after that
	open  bool // the rules may still be missing: nobody has called Unwatched after Missed
	said  bool // the log has that the last call for the mark failed
	calls patience.Calls
}

// markLimit is how long callers wait for the run folder, which may hang. Whoever puts the table right
// waits for the mark.
const markLimit = time.Second

// Missed says that the rules were missing, or that others touched them, or that a link was not among
// the links of the rules: the next pass also forgets connections that somebody may have begun in a
// pod's name. The caller calls Missed before it puts the table right, so that the mark is there before
// a kill can leave a table that is right. Without the mark all goes on.
func (t *Traffic) Missed() {
	m := &t.missed
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now, m.open = true, true
	t.try("could not note for the next agent that the nftables rules did not hold", func() error {
		path := t.Root.Missed()
		if _, err := os.Lstat(path); err == nil {
			return nil
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return err
		}
		return f.Close() // nothing to sync: only a reboot loses the name, and with it the connections
	})
}

// over says that the rules are in force again.
func (m *missed) over() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open = false
}

// take reports whether a pass that begins now has to make up for missing rules. If they may be missing
// still, a later pass has to, as well.
func (m *missed) take() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.now
	m.now = was && m.open
	return was
}

// unmark removes the mark after a pass that has made up for missing rules, unless they have been
// missing again since the pass began.
func (t *Traffic) unmark() {
	m := &t.missed
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.now || m.open {
		return
	}
	t.try("could not take back the note that the nftables rules did not hold: the next agent also deletes connections between pods", func() error {
		if err := os.Remove(t.Root.Missed()); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

// leftMark reports whether an agent has left a mark. If the run folder cannot be asked, there is none.
func (t *Traffic) leftMark() bool {
	_, err := patience.Call(&t.missed.calls, "look", markLimit, func() (fs.FileInfo, error) { return os.Lstat(t.Root.Missed()) }, nil)
	return err == nil
}

// try does something with the mark. Of failures in a row it logs the first. The caller holds
// t.missed.mu.
func (t *Traffic) try(failure string, do func() error) {
	m := &t.missed
	_, err := patience.Call(&m.calls, "mark", markLimit, func() (none struct{}, err error) { return none, do() }, nil)
	if err != nil && !m.said {
		t.Log.Warn(failure, "err", err)
	}
	m.said = err != nil
}
