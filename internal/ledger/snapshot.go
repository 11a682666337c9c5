package ledger

import (
	"fmt"
	"maps"
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
	f, err := root.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := lockFile(f, path, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	if size <= 0 {
		return &Snapshot{Path: path, Schema: Schema}, nil
	}
	h, s, err := load(f, path, kinds, func(opening) reading { return asWritten })
	if err != nil {
		return nil, err
	}
	snap := s.snapshot()
	snap.Path, snap.Size, snap.Schema, snap.Seq = path, size, h.Schema, h.Seq
	return &snap, nil
}

// snapshot returns everything that the state has. If others may change the state, the caller
// holds its lock.
func (s *state) snapshot() Snapshot {
	snap := Snapshot{
		Schema: Schema, Epoch: s.epoch, Quarantine: s.quarantine,
		Resting: slices.Collect(maps.Values(s.rests)), Tombstones: slices.Collect(maps.Values(s.tombs)),
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
	snap.Path, snap.Size, snap.Seq = l.opts.Path, stats.FileSize, l.state.seq
	snap.set(l.opts.Clock.Stepped())
	return snap
}
