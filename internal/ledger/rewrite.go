package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"
)

// A log that has outgrown its snapshot is written anew: another goroutine writes what the ledger
// has into a new file beside the old one, while the writer goes on with the old file. When the new
// file is written, the writer adds the batches of the meantime, makes the new file durable, and
// gives it the ledger's name. A crash leaves the old file or the new one, and each is whole.
//
// Both files are locked, so that no other process can open either meanwhile.

const (
	// minLog is how many bytes of log are not worth writing the file anew.
	minLog = 4 << 20
	// fullLog is how many bytes of log are not worth that on a full disk.
	fullLog = 256 << 10
	// rewriteRetry is how long the writer waits, after a failure, before it tries again to write
	// the file anew.
	rewriteRetry = 10 * time.Second
	// snapshotBy is about how many bytes of a snapshot make a batch.
	snapshotBy = 128 << 10
)

// contents are a ledger's records at one moment. Nobody changes them.
type contents struct {
	head   []byte // the head's JSON
	owners []*entry
	rests  view[rested]
	tombs  view[tomb]
	seq    uint64
}

func (s *state) contents() contents {
	c := contents{
		owners: make([]*entry, 0, len(s.owners)), rests: s.rests.view(), tombs: s.tombs.view(),
		seq: s.seq,
	}
	for _, e := range s.owners {
		c.owners = append(c.owners, e)
	}
	return c
}

// sectors returns about how many sectors the contents take. If the disk has less room, writeAside
// gives up at once, and does not fill the disk in vain.
func (c *contents) sectors() int {
	const record = 192 // bytes of a rest or a tombstone, or of an owner beside its JSON
	bytes := record * (len(c.owners) + c.rests.len() + c.tombs.len())
	for _, e := range c.owners {
		bytes += e.size
	}
	return sectors(bytes)
}

// rewriting is a file that is being written anew.
type rewriting struct {
	to     *aside
	err    error
	since  [][]byte // the payloads of the batches since the snapshot; only the writer uses since
	cancel atomic.Bool
	done   chan struct{} // closed when to and err are set
}

// outgrown reports whether the file should be written anew. On a full disk a shorter log is worth
// that: the log has grown into the reserve.
func (s *store) outgrown() bool {
	most := s.opts.logFor(s.snap)
	if !s.full.IsZero() {
		most = min(most, fullLog)
	}
	return s.next == nil && s.failed == nil && s.tail-s.snap > most && time.Since(s.tired) > rewriteRetry
}

// logFor returns how many bytes of log may follow a snapshot of `snap` bytes before the file is
// written anew.
func (o *Options) logFor(snap int64) int64 { return max(cmp.Or(o.minLog, minLog), snap) }

// rewrite begins to write the file anew.
func (s *store) rewrite(c contents) {
	c.head = s.head
	r := &rewriting{done: make(chan struct{})}
	s.next = r
	opts, least := s.opts, s.left(0)
	go func() {
		defer close(r.done)
		r.to, r.err = writeAside(opts, c, least, &r.cancel)
	}()
}

// left returns how many sectors of zeros a file must have to take over: the reserve or, if that is
// more, need, which the commits in the present batch need. But if the ledger's file has fewer,
// because the disk is full, as many as that file has are enough.
func (s *store) left(need int) int { return max(0, min(max(reserve(s.exits), need), s.free())) }

// rewritten returns a channel that is closed when takeOver can go on; nil: the file is not being
// written anew.
func (s *store) rewritten() <-chan struct{} {
	if s.next == nil {
		return nil
	}
	return s.next.done
}

// takeOver makes the new file the ledger's, with room for a batch's need. If takeOver fails, the
// old file stays; or the store has failed for good, because nobody knows which file has the name.
func (s *store) takeOver(need int) {
	r := s.next
	s.next = nil
	err := r.err
	if err == nil {
		err = s.failed // the new file may lack what the old one got last
	}
	if err == nil {
		err = r.to.catchUp(r.since, s.left(need))
	}
	if err == nil {
		err = s.rename(r.to)
	}
	if err != nil {
		s.tired = time.Now()
		s.discard(r.to)
		return
	}
	s.full = time.Time{} // the former file's room is free again
}

// rename makes a file durable and gives it the ledger's name. The store goes on with it.
func (s *store) rename(a *aside) error {
	if err := a.finish(); err != nil {
		return err
	}
	path, vol := s.opts.Path, s.opts.volume
	if err := errors.Join(named(path, s.file), named(a.path, a.file), s.own(s.file, a.file)); err != nil {
		return err
	}
	if err := vol.rename(a.path, path); err != nil {
		if named(path, s.file) != nil {
			return s.fail(err)
		}
		return errors.Join(err, s.own(s.file))
	}
	_ = s.file.Close() // the store writes nothing to the old file any more
	s.file, s.logFile, s.size, s.end = a.file, a.logFile, a.end, a.end
	s.rewrites++
	if err := errors.Join(s.own(s.file), vol.syncDir(filepath.Dir(path))); err != nil {
		return s.fail(err)
	}
	return nil
}

// named returns an error if a path does not lead to a file. Somebody may have put another file
// there: such a file must neither be removed nor become the ledger.
func named(path string, f file) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return namedOne(path, info)
}

// namedOne returns an error if a path leads to none of some files.
func namedOne(path string, files ...os.FileInfo) error {
	now, err := os.Stat(path)
	if err == nil && !slices.ContainsFunc(files, func(f os.FileInfo) bool { return os.SameFile(f, now) }) {
		err = fmt.Errorf("another file has taken the place of %s", path)
	}
	return err
}

// own says which files are the ledger's from now on, for inPlace.
func (s *store) own(files ...file) error {
	var infos []os.FileInfo
	for _, f := range files {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		infos = append(infos, info)
	}
	s.mine.Store(&infos)
	return nil
}

// inPlace returns nil if a path leads to the ledger's file. Anybody may call it while the name
// passes from one file to another.
func (s *store) inPlace(path string) error {
	for {
		mine := s.mine.Load()
		err := namedOne(path, *mine...)
		if err == nil || s.mine.Load() == mine {
			return err
		}
	}
}

// discard removes a file that was written aside in vain, unless it is the ledger's by now.
func (s *store) discard(a *aside) {
	if a != nil && a.file != s.file {
		_ = a.drop(s.opts.volume) // if drop fails, the next Open removes the file
	}
}

// replaceOld writes a ledger of version 1 anew, and keeps the old one beside it. On a full disk the
// old file has to give up its spare pages (shed) to make room. If the reserve still lacks room,
// prepare removes the old file.
func (s *store) replaceOld(l *loaded) error {
	st, c := &l.state, l.state.contents()
	var err error
	if c.head, err = s.headOf(st.epoch, st.first, st.quarantine); err != nil {
		return err
	}
	a, err := writeAside(s.opts, c, reserve(s.exits)+growBy, nil)
	if errors.Is(err, ErrFull) || isFull(err) {
		if err = s.shed(l.old); err == nil {
			a, err = writeAside(s.opts, c, headReserve, nil)
		}
	}
	if err == nil {
		err = s.keepFormer()
	}
	if err == nil {
		err = s.rename(a)
	}
	if err != nil {
		s.discard(a)
		return fmt.Errorf("writing the ledger of an earlier version anew: %w", explain(err))
	}
	s.head = c.head
	return nil
}
