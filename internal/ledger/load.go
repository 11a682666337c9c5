package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// record is a record of the file, with its key.
type record struct{ key, val []byte }

// load reads and checks everything in a ledger's file, and writes nothing. clocks is given
// the head's opening, and returns the function that turns the records' spans into times.
func load(f *os.File, path string, kinds hold.Kinds, clocks func(opening) reading) (*head, state, error) {
	h, s, err := parse(f, kinds, clocks)
	if d := (*DamagedError)(nil); errors.As(err, &d) {
		d.Path = path
		return nil, s, d
	}
	return h, s, err
}

// damaged makes a *DamagedError, whose path load fills in.
func damaged(format string, args ...any) error {
	return &DamagedError{What: fmt.Errorf(format, args...).Error()}
}

func parse(f *os.File, kinds hold.Kinds, clocks func(opening) reading) (*head, state, error) {
	s := newState()
	info, err := f.Stat()
	if err != nil {
		return nil, s, err
	}
	img, err := readImage(f, info.Size())
	if err != nil {
		return nil, s, err
	}
	found := map[string][]record{}
	if err := img.walk(func(bucket string, key, val []byte) error {
		found[bucket] = append(found[bucket], record{key, val})
		return nil
	}); err != nil {
		return nil, s, err
	}
	h, err := loadHead(found, img)
	if err != nil {
		return nil, s, err
	}
	var opened opening
	if h.Opened != nil {
		opened = *h.Opened
	}
	read := clocks(opened)
	s.epoch, s.first, s.seq, s.quarantine = h.Epoch, h.First, h.Seq, h.quarantine(read)
	for _, load := range []func(map[string][]record, *state) error{
		func(found map[string][]record, s *state) error { return loadOwners(found[bucketOwners], kinds, s) },
		loadReleasing, loadTombs,
		func(found map[string][]record, s *state) error { return loadRests(found, read, s) },
	} {
		if err := load(found, &s); err != nil {
			return nil, s, err
		}
	}
	return h, s, nil
}

// loadHead reads the head and compares it with what was found.
func loadHead(found map[string][]record, img *image) (*head, error) {
	if n := len(found[bucketMeta]); n != 1 || string(found[bucketMeta][0].key) != string(headKey) {
		return nil, damaged("bucket meta has %d records, want one head", n)
	}
	var h head
	if err := unsealInto(bucketMeta, headKey, found[bucketMeta][0].val, &h); errors.Is(err, ErrNewer) {
		return nil, err
	} else if err != nil {
		return nil, damaged("head: %w", err)
	}
	if h.Schema > Schema {
		return nil, fmt.Errorf("the file has schema %d, this program knows schemas up to %d: %w", h.Schema, Schema, ErrNewer)
	}
	if h.Seq != img.txid {
		return nil, damaged("head is of transaction %d, the file of %d", h.Seq, img.txid)
	}
	if want := append([]string{bucketMeta}, dataBuckets...); !slices.Equal(img.buckets, want) {
		return nil, damaged("buckets are %.200q, want %q", img.buckets, want)
	}
	for _, bucket := range dataBuckets {
		want := h.Sums[bucket]
		if want == nil {
			return nil, damaged("head has no sum of bucket %s", bucket)
		}
		var have sum
		for _, r := range found[bucket] {
			if len(r.val) < recordHead {
				return nil, damaged("%s %.40q: record of %d bytes is too short", bucket, r.key, len(r.val))
			}
			have.add(r.val)
		}
		if have != *want {
			return nil, damaged("bucket %s has %d records (sum %x), head says %d (sum %x)",
				bucket, have.N, have.CRC, want.N, want.CRC)
		}
	}
	return &h, nil
}

// loadOwners decodes owners on all processors, because it takes most of the time that
// opening a ledger takes.
func loadOwners(recs []record, kinds hold.Kinds, s *state) error {
	entries := make([]*entry, len(recs))
	workers := min(runtime.GOMAXPROCS(0), len(recs)/64+1)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w * len(recs) / workers; i < (w+1)*len(recs)/workers && errs[w] == nil; i++ {
				entries[i], errs[w] = loadOwner(recs[i], kinds)
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
			s.needers[id] = append(s.needers[id], o.ID)
		}
	}
	for id := range s.needers {
		if s.owners[id] == nil {
			return damaged("owner %s, which others need, has no record", id)
		}
	}
	return nil
}

func loadOwner(r record, kinds hold.Kinds) (*entry, error) {
	body, err := unseal(bucketOwners, r.key, r.val)
	if errors.Is(err, ErrNewer) {
		return nil, err
	} else if err != nil {
		return nil, damaged("owner %.40q: %w", r.key, err)
	}
	o, err := kinds.Decode(body)
	if err != nil {
		// The checksum is right, so this is no damage: another version has written it.
		return nil, fmt.Errorf("this program does not understand the record of owner %s: %w", r.key, err)
	}
	if string(o.ID) != string(r.key) {
		return nil, damaged("owner %.40q says it is %s", r.key, o.ID)
	}
	return &entry{owner: o, size: len(body)}, nil
}

func loadReleasing(found map[string][]record, s *state) error {
	return each(found, bucketReleasing, func(key string, rec releasingRecord) error {
		e := s.owners[hold.ID(key)]
		if e == nil {
			return damaged("owner %.40q is releasing, but has no record", key)
		}
		e.owner.Releasing = time.Unix(0, rec.At).UTC()
		return nil
	})
}

func loadRests(found map[string][]record, read reading, s *state) error {
	return each(found, bucketRests, func(key string, rec restRecord) error {
		n, ok := nameOf(key)
		if !ok {
			return damaged("rest %.40q is not a name", key)
		}
		if holder, ok := s.names[n]; ok {
			return damaged("name %s rests, but owner %s has it", n, holder)
		}
		freed, until := read(span(rec))
		s.rests[n] = Rest{n, freed, until}
		return nil
	})
}

func loadTombs(found map[string][]record, s *state) error {
	return each(found, bucketTombstones, func(key string, rec tombRecord) error {
		s.tombs[key] = Tombstone{key, rec.Boot, rec.Started, rec.Until}
		return nil
	})
}

// each decodes the records of a bucket and calls do for each.
func each[R any](found map[string][]record, bucket string, do func(key string, rec R) error) error {
	for _, r := range found[bucket] {
		body, err := unseal(bucket, r.key, r.val)
		if errors.Is(err, ErrNewer) {
			return err
		} else if err != nil {
			return damaged("%s %.40q: %w", bucket, r.key, err)
		}
		var rec R
		if err := json.Unmarshal(body, &rec); err != nil {
			return damaged("%s %.40q: %w", bucket, r.key, err)
		}
		if err := do(string(r.key), rec); err != nil {
			return err
		}
	}
	return nil
}
