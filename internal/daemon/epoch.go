package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/root"
)

// ErrMoved says that the agent was started in another network namespace than
// before, though the node has not been rebooted.
var ErrMoved = errors.New("started in another network namespace than before")

// ReadMarker returns what the marker (root.Dir.Epoch) says, which a reboot takes away: the
// epoch that an agent of this root entered last, and on a second line its instance id. What it does not say, or all of it if
// there is none, or no file, is "".
func ReadMarker(dir root.Dir) (epoch, instance string, err error) {
	raw, err := root.ReadFile(dir.Epoch())
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, root.ErrIrregular) {
		return "", "", fmt.Errorf("looking for the marker of this epoch: %w", err)
	}
	epoch, instance, _ = strings.Cut(string(raw), "\n")
	return strings.TrimSpace(epoch), strings.TrimSpace(instance), nil
}

// ThisEpoch is the boot and the network namespace that the daemon lives in.
func (p Place) ThisEpoch() ledger.Epoch {
	e := ledger.Epoch{Boot: p.Boot}
	e.Netns.Dev, e.Netns.Ino, e.Netns.ID = p.Netns.Dev, p.Netns.Ino, p.Netns.ID
	return e
}

// EpochText is an epoch as records and tombstones have it.
func EpochText(e ledger.Epoch) string {
	return fmt.Sprintf("%s/%d/%d/%d", e.Boot, e.Netns.Dev, e.Netns.Ino, e.Netns.ID)
}

// Enter compares the epoch with the ledger's. After a reboot it writes the new one down.
// In the same boot another network namespace is most likely a mistake that would release
// everything that the ledger has: Enter refuses it with ErrMoved, unless the run folder's
// marker is gone as well, as when a node that is a container was started again, or
// Options.Moved says that it is meant. Without a marker, stays names what of the ledger is
// still where it was in the former epoch, as nothing is when a container was started again;
// "" is nothing.
func (d *Daemon) Enter(stays func(former string) string) error {
	marker := d.Root.Epoch()
	was, now := d.Ledger.Epoch(), d.ThisEpoch()
	if was.Boot == now.Boot && was != now && !d.Moved {
		if _, err := os.Stat(marker); err == nil {
			return fmt.Errorf("%w: start it where it ran, or remove %s (or say --moved) if all of its pods are gone", ErrMoved, marker)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("looking for the marker of this epoch: %w", err)
		}
		if there := stays(EpochText(was)); there != "" {
			return fmt.Errorf("%w, and %s is still there: start it where it ran, or say --moved to give up all of its pods", ErrMoved, there)
		}
	}
	if was != now {
		if err := d.Ledger.SetEpoch(now); err != nil {
			return fmt.Errorf("writing down the epoch: %w", err)
		}
	}
	return d.markSoon()
}

// SameEpoch refuses to go on without a ledger elsewhere than where the last daemon served
// in this boot.
func (d *Daemon) SameEpoch() error {
	was, _, err := ReadMarker(d.Root)
	if err != nil {
		return err
	}
	if strings.HasPrefix(was, d.Boot+"/") && was != d.Epoch && !d.Moved {
		return fmt.Errorf("%w, and its ledger is lost: start it where it ran, or say --moved if all of its pods are gone", ErrMoved)
	}
	return nil
}

// markSoon is mark, but for a run folder that has no room, or cannot be written: deletions
// that wait need no marker. keepReachable tries again.
func (d *Daemon) markSoon() error {
	err := d.mark()
	d.unmarked = err != nil
	if noRoom(err) {
		d.Log.Warn("should the ledger be lost, nothing would keep an agent from starting in another network namespace", "err", err)
		return nil
	}
	return err
}

// noRoom reports whether a file could not be made for want of room, or of a file system
// that can be written.
func noRoom(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS)
}

// mark writes the marker, durably, unless it is there: it needs room, which /run may lack.
func (d *Daemon) mark() error {
	path, text := d.Root.Epoch(), d.Epoch+"\n"+d.Instance+"\n"
	if raw, err := root.ReadFile(path); err == nil && string(raw) == text {
		return nil
	}
	err := replaceFile(path, text)
	if err != nil {
		return fmt.Errorf("writing the marker of this epoch: %w", err)
	}
	return nil
}

// replaceFile writes a file so that it is whole or not there after a crash. What has
// its name and is no file goes, but for a folder that is not empty.
func replaceFile(path, text string) error {
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := unix.Rmdir(path); err != nil && err != unix.ENOTDIR && err != unix.ENOENT {
		return fmt.Errorf("removing the folder %s, which is in a file's place: %w", path, err)
	}
	return os.Rename(tmp, path)
}
