package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/berth-net/berth/internal/hold"
)

// loaded is what a ledger's file has.
type loaded struct {
	head     head
	headBody []byte // the head's JSON
	state    state
	exits    int      // sectors that the deletions of all owners may take, as exit says
	log      *logFile // nil: the file is of version 1
	old      *image   // a file of version 1
}

// load reads and checks everything in a ledger's file of `size` bytes, and writes nothing. load
// calls clocks with the head's opening; clocks returns the function that turns the records' spans
// into times.
func load(f io.ReaderAt, size int64, path string, kinds hold.Kinds, clocks func(opening) reading) (*loaded, error) {
	l, err := parse(f, size, kinds, clocks)
	if d := (*DamagedError)(nil); errors.As(err, &d) {
		d.Path = path
		return nil, d
	}
	return l, err
}

// damaged makes a *DamagedError, whose path load fills in.
func damaged(format string, args ...any) error {
	return &DamagedError{What: fmt.Errorf(format, args...).Error()}
}

func parse(f io.ReaderAt, size int64, kinds hold.Kinds, clocks func(opening) reading) (*loaded, error) {
	l := &loaded{state: newState()}
	s := &l.state
	records, err := l.records(f, size)
	if err != nil {
		return nil, err
	}
	if l.headBody, err = unseal(bucketMeta, headKey, records[bucketMeta][headKey]); err == nil {
		err = json.Unmarshal(l.headBody, &l.head)
	}
	if errors.Is(err, ErrNewer) {
		return nil, err
	} else if err != nil {
		return nil, damaged("head: %w", err)
	}
	h := &l.head
	if h.Schema > Schema {
		return nil, fmt.Errorf("the file has schema %d, this program knows schemas up to %d: %w", h.Schema, Schema, ErrNewer)
	}
	var opened opening
	if h.Opened != nil {
		opened = *h.Opened
	}
	read := clocks(opened)
	s.epoch, s.first, s.quarantine = h.Epoch, h.First, h.quarantine(read)
	for _, load := range []func(found, *state) error{
		func(f found, s *state) error { return loadOwners(f[bucketOwners], kinds, s) },
		loadReleasing, loadTombs,
		func(f found, s *state) error { return loadRests(f, read, s) },
	} {
		if err := load(records, s); err != nil {
			return nil, err
		}
	}
	for _, e := range s.owners {
		l.exits += exit(&e.owner)
	}
	return l, nil
}

// records reads the records of a file of either version.
func (l *loaded) records(f io.ReaderAt, size int64) (all found, err error) {
	first := make([]byte, sectorSize)
	if n, err := f.ReadAt(first, 0); err != nil && err != io.EOF {
		return nil, fmt.Errorf("reading: %w", err)
	} else if n < sectorSize {
		return nil, damaged("%d bytes are too few", n)
	}
	if !hasMagic(first) {
		if all, l.old, err = readOld(f, size); err == nil {
			l.state.seq = l.old.txid
		}
		return all, err
	}
	log, err := readLog(f, size)
	if err != nil {
		return nil, err
	}
	l.log, all = log, log.found
	log.found = nil // nobody needs the records' bytes once they are decoded
	l.state.seq = log.seq + log.batch - log.snapshot
	if n := len(all[bucketMeta]); n != 1 {
		return nil, damaged("bucket meta has %d records, want one head", n)
	}
	return all, nil
}

// loadOwners decodes owners on all processors, because it takes most of the time that
// opening a ledger takes.
func loadOwners(records map[string][]byte, kinds hold.Kinds, s *state) error {
	recs := slices.Sorted(maps.Keys(records))
	entries := make([]*entry, len(recs))
	workers := min(runtime.GOMAXPROCS(0), len(recs)/64+1)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w * len(recs) / workers; i < (w+1)*len(recs)/workers && errs[w] == nil; i++ {
				entries[i], errs[w] = loadOwner(recs[i], records[recs[i]], kinds)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, e := range entries {
		o := &e.owner
		s.owners[o.ID] = e
		for _, n := range o.Names {
			if other, ok := s.names[n]; ok {
				return damaged("owners %s and %s both have name %s", other, o.ID, n)
			}
			s.names[n] = o.ID
		}
		for _, id := range o.Needs {
			s.edges.put(edge{id, o.ID}, struct{}{})
		}
	}
	for id := range s.edges {
		if s.owners[id] == nil {
			return damaged("owner %s, which others need, has no record", id)
		}
	}
	return nil
}

func loadOwner(key string, rec []byte, kinds hold.Kinds) (*entry, error) {
	body, err := unseal(bucketOwners, key, rec)
	if errors.Is(err, ErrNewer) {
		return nil, err
	} else if err != nil {
		return nil, damaged("owner %.40q: %w", key, err)
	}
	o, err := kinds.Decode(body)
	if err != nil {
		// The checksum is right, so this is no damage: another version has written the record.
		return nil, fmt.Errorf("this program does not understand the record of owner %s: %w", key, err)
	}
	if string(o.ID) != key {
		return nil, damaged("owner %.40q says it is %s", key, o.ID)
	}
	return &entry{owner: o, size: len(body)}, nil
}

func loadReleasing(f found, s *state) error {
	return each(f, bucketReleasing, func(key string, rec releasingRecord) error {
		e := s.owners[hold.ID(key)]
		if e == nil {
			return damaged("owner %.40q is releasing, but has no record", key)
		}
		rec.mark(&e.owner)
		return nil
	})
}

func loadRests(f found, read reading, s *state) error {
	return each(f, bucketRests, func(key string, rec restRecord) error {
		n, ok := nameOf(key)
		if !ok {
			return damaged("rest %.40q is not a name", key)
		}
		if _, ok := s.names[n]; ok {
			return nil // the rest was over, and prune had dropped it from memory, when the owner claimed the name
		}
		freed, _ := read(span(rec))
		s.rests.put(key, rested{freed.UnixNano(), span(rec)})
		return nil
	})
}

func loadTombs(f found, s *state) error {
	return each(f, bucketTombstones, func(key string, rec tombRecord) error {
		s.tombs.put(key, tomb{rec.Boot, rec.Started, rec.Until})
		return nil
	})
}

// each decodes the records of a bucket and calls do for each.
func each[R any](f found, bucket string, do func(key string, rec R) error) error {
	for key, val := range f[bucket] {
		body, err := unseal(bucket, key, val)
		if errors.Is(err, ErrNewer) {
			return err
		} else if err != nil {
			return damaged("%s %.40q: %w", bucket, key, err)
		}
		var rec R
		if err := json.Unmarshal(body, &rec); err != nil {
			return damaged("%s %.40q: %w", bucket, key, err)
		}
		if err := do(key, rec); err != nil {
			return err
		}
	}
	return nil
}
