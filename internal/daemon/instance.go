package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/root"
)

// ErrInstanceLost says that there is a ledger, but not the instance id by which the
// ledger's holds can be found on the node. Under another id the agent could release none of these holds.
var ErrInstanceLost = errors.New("the agent's instance id is lost")

// LoadInstance reads the daemon's instance id, or makes a new one. taken reports whether
// the marks of an instance are in use in this network namespace already. If taken fails,
// LoadInstance makes none.
func (d *Daemon) LoadInstance(taken func(instance string) (bool, error)) (err error) {
	d.Instance, d.first, err = loadInstance(d.Root, taken)
	return err
}

// First returns when this daemon began, and whether it is the first one of its state
// folder.
func (d *Daemon) First() (ledger.First, bool) {
	return ledger.First{Boot: d.Boot, Started: d.born}, d.first
}

// loadInstance returns the agent's instance id, and whether it has made that id just now,
// as the first start does. If the id's file is lost, loadInstance takes the id from the
// marker, as long as there is a marker. taken is LoadInstance's parameter.
//
// Only one process at a time makes an id. If two agents start at once, the ledger's lock
// lets one of them serve, but only later: each would make an id before, and the file could have the
// id of the agent that gives up. The lock for that is a file of the agent's own,
// because others, such as backups, lock the state folder. An agent that has an id already
// needs no lock.
func loadInstance(dir root.Dir, taken func(instance string) (bool, error)) (id string, minted bool, err error) {
	minting := dir.Instance() + ".lock"
	if id, err = readInstance(dir); !errors.Is(err, fs.ErrNotExist) {
		if _, left := os.Lstat(minting); err == nil && left == nil {
			_ = os.Remove(minting) // the process that made this lock was killed, or is about to end and finds the instance id
		}
		return id, false, err
	}
	locked, err := take(minting, dir, nil)
	if err != nil {
		return "", false, fmt.Errorf("locking %s, to begin an instance: %w", dir.State(), err)
	}
	defer func() { err = errors.Join(err, locked.release()) }()
	return readOrMint(dir, taken)
}

// readInstance returns the instance id in its file, or fs.ErrNotExist if there is no file. An empty
// file, such as a restored backup may have, does not count as an instance file.
func readInstance(dir root.Dir) (id string, err error) {
	raw, err := root.ReadFile(dir.Instance())
	if err != nil {
		return "", fmt.Errorf("reading the instance id: %w", err)
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return "", fmt.Errorf("reading %s: it is empty: %w", dir.Instance(), fs.ErrNotExist)
	}
	parsed, err := hold.ParseID(strings.TrimSpace(string(raw)))
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", dir.Instance(), err)
	}
	return string(parsed), nil
}

// InstanceOf returns the id that a daemon of a root has, or would find again; "" if none has run
// there. It changes nothing.
func InstanceOf(dir root.Dir) (string, error) {
	id, err := readInstance(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	_, id, err = ReadMarker(dir)
	return id, err
}

// readOrMint is the part of loadInstance that needs the lock.
func readOrMint(dir root.Dir, taken func(instance string) (bool, error)) (id string, minted bool, err error) {
	if id, err = readInstance(dir); !errors.Is(err, fs.ErrNotExist) {
		return id, false, err // no error: another process has made it meanwhile
	}
	_, was, err := ReadMarker(dir)
	if err != nil {
		return "", false, err
	}
	if id, err := hold.ParseID(was); err == nil {
		return string(id), false, writeInstance(dir, string(id))
	}
	if _, err := os.Stat(dir.Ledger()); err == nil {
		return "", false, fmt.Errorf("%w: %s is missing or empty, but %s exists: write the id into that file again; it follows \"berth-\" in the name of the agent's table "+
			"(nft list tables); or, if the node was rebooted since, remove the ledger as well, because nothing of what it lists is left",
			ErrInstanceLost, dir.Instance(), dir.Ledger())
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", false, fmt.Errorf("looking for a ledger: %w", err)
	}
	for {
		id := string(hold.NewID())
		used, err := taken(id)
		if err != nil {
			return "", false, fmt.Errorf("looking for other agents' links: %w", err)
		}
		if !used {
			return id, true, writeInstance(dir, id)
		}
	}
}

// writeInstance writes the instance id, durably.
func writeInstance(dir root.Dir, id string) error {
	err := replaceFile(dir.Instance(), id+"\n")
	if err != nil {
		return fmt.Errorf("writing the instance id: %w", err)
	}
	d, err := os.Open(dir.State())
	if err != nil {
		return fmt.Errorf("writing the instance id: %w", err)
	}
	defer d.Close()
	return d.Sync()
}
