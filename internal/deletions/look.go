package deletions

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// restless is how old a folder's time of change must be before the same time proves that the
// folder has not changed since: some file systems count in seconds.
const restless = 3 * time.Second

// lastLook is what a look has found in the folder, if the folder had not changed for restless
// by then. The queue uses it until the folder changes. Listing the folder costs a tenth of a
// millisecond, because of the spare files, and every ADD looks.
type lastLook struct {
	sync.Mutex
	dev, ino uint64
	changed  unix.Timespec // zero: nothing is known
	stepped  time.Duration // by how much the clock was set until then: a clock that is set can show the same time again for a later change
	names    []string
}

// look returns the names in the folder that ought to be deletions'.
func (q *Queue) look(f *folder) ([]string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return nil, fmt.Errorf("looking at %s: %w", f.path, err)
	}
	s := &q.seen
	s.Lock()
	stepped, now := q.clock.Stepped(), q.now() // before anything is read
	if s.changed == st.Ctim && s.stepped == stepped && s.dev == st.Dev && s.ino == st.Ino {
		defer s.Unlock()
		return s.names, nil
	}
	s.Unlock() // before list, which waits if the folder hangs
	names, err := f.list()
	if err != nil {
		return nil, err
	}
	waiting := names[:0]
	for _, name := range names {
		if queued(name) {
			waiting = append(waiting, name)
		}
	}
	s.Lock()
	defer s.Unlock()
	if now.Sub(time.Unix(st.Ctim.Unix())) < restless {
		s.changed, s.names = unix.Timespec{}, nil
	} else {
		s.dev, s.ino, s.changed, s.stepped, s.names = st.Dev, st.Ino, st.Ctim, stepped, waiting
	}
	return waiting, nil
}

// queued reports whether the file of a name in the folder ought to be a deletion. All files ought
// to be deletions, except files that have another purpose.
func queued(name string) bool {
	return name != damagedName && name != "lost+found" &&
		!strings.HasPrefix(name, tmpPrefix) && !strings.HasPrefix(name, sparePrefix)
}
