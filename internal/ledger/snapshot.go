package ledger

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/root"
)

// Snapshot is everything that a ledger has, for people to look at.
type Snapshot struct {
	Path       string       `json:"path"`
	Size       int64        `json:"size"` // bytes
	Schema     int          `json:"schema"`
	Seq        uint64       `json:"seq"` // number of the last transaction
	Epoch      Epoch        `json:"epoch"`
	Quarantine Quarantine   `json:"quarantine,omitzero"` // by the wall clock, like the rests
	Owners     []hold.Owner `json:"owners"`              // by ID
	Resting    []Rest       `json:"resting"`             // the name freed first comes first; includes rests that are over
	Tombstones []Tombstone  `json:"tombstones"`          // by key; includes expired ones
}

// Read reads a ledger that no agent has open. It writes nothing, so that it works on a
// read-only file system. If an agent has the ledger open the error is ErrLocked; if the
// ledger is damaged it is a *DamagedError. An empty file is an empty ledger.
func Read(path string, kinds hold.Kinds) (*Snapshot, error) {
	s, err := read(path, kinds)
	if err != nil {
		return nil, fmt.Errorf("reading ledger: %w", err)
	}
	return s, nil
}

func read(path string, kinds hold.Kinds) (*Snapshot, error) {
	f, size, err := openToRead(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size == 0 {
		return &Snapshot{Path: path, Schema: Schema}, nil
	}
	l, err := load(f, size, path, kinds, func(opening) reading { return asWritten })
	if err != nil {
		return nil, err
	}
	snap := l.state.snapshot()
	snap.Path, snap.Size, snap.Schema = path, size, l.head.Schema
	return &snap, nil
}

// openToRead opens and locks the file that has the ledger's name. If an agent that has just ended
// has given the name to another file meanwhile, openToRead opens the other file.
func openToRead(path string) (*os.File, int64, error) {
	for {
		f, err := root.Open(path)
		if err != nil {
			return nil, 0, err
		}
		size, err := lockFile(f, path, unix.LOCK_SH)
		if err == nil && size >= 0 {
			return f, size, nil
		}
		f.Close()
		if err != nil {
			return nil, 0, err
		}
	}
}

// snapshot returns everything that the state has. If others may change the state, the caller
// holds its lock.
func (s *state) snapshot() Snapshot {
	snap := Snapshot{
		Schema: Schema, Seq: s.seq, Epoch: s.epoch, Quarantine: s.quarantine.Quarantine,
		Resting: s.resting(), Tombstones: s.tombstones(),
	}
	for _, id := range slices.Sorted(maps.Keys(s.owners)) {
		snap.Owners = append(snap.Owners, s.owners[id].owner.Clone())
	}
	sortRests(snap.Resting)
	slices.SortFunc(snap.Tombstones, func(a, b Tombstone) int { return strings.Compare(a.Key, b.Key) })
	return snap
}

// Snapshot returns everything that the ledger has now.
func (l *Ledger) Snapshot() Snapshot {
	stats := l.Stats()
	l.mu.RLock()
	defer l.mu.RUnlock()
	snap := l.state.snapshot()
	snap.Path, snap.Size = l.opts.Path, stats.FileSize
	snap.set(l.opts.Clock.Stepped())
	return snap
}
