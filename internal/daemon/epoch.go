package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/root"
)

// ErrMoved says that the agent was started in another network namespace than
// before, though the node has not been rebooted.
var ErrMoved = errors.New("the agent was started in another network namespace than before")

// ReadMarker reads the marker (root.Dir.Epoch), which a reboot takes away. Its first line
// is the epoch that an agent of this root entered last, its second line that agent's
// instance id. A line that the marker lacks is "". Both are "" if there is no marker, or if
// something that is no file has its name, or no folder the run folder's name.
func ReadMarker(dir root.Dir) (epoch, instance string, err error) {
	raw, err := root.ReadFile(dir.Epoch())
	if err != nil && !noMarker(err) {
		return "", "", fmt.Errorf("looking for the marker of this epoch: %w", err)
	}
	epoch, instance, _ = strings.Cut(string(raw), "\n")
	return strings.TrimSpace(epoch), strings.TrimSpace(instance), nil
}

// noMarker reports whether an error of looking at the marker says that there is none.
func noMarker(err error) bool {
	return slices.ContainsFunc([]error{fs.ErrNotExist, root.ErrIrregular, unix.ENOTDIR, unix.ELOOP},
		func(none error) bool { return errors.Is(err, none) })
}

// ThisEpoch returns the boot and the network namespace that the daemon lives in.
func (p Place) ThisEpoch() ledger.Epoch {
	e := ledger.Epoch{Boot: p.Boot}
	e.Netns.Dev, e.Netns.Ino, e.Netns.ID = p.Netns.Dev, p.Netns.Ino, p.Netns.ID
	return e
}

// EpochText returns an epoch as records and the marker write it.
func EpochText(e ledger.Epoch) string {
	return fmt.Sprintf("%s/%d/%d/%d", e.Boot, e.Netns.Dev, e.Netns.Ino, e.Netns.ID)
}

// Enter compares this epoch with the ledger's, and writes this one down if they differ, as
// after a reboot. Another network namespace in the same boot is most likely a mistake,
// which would release everything that the ledger has. So Enter refuses it with ErrMoved,
// unless Options.Moved says that somebody means it, or the marker in the run folder is gone
// as well: then the node may be a container that was started again. In that case Enter
// calls stays, which names something of the ledger that is still where it was in the former
// epoch. If stays names something, Enter refuses the new namespace all the same. If stays returns "",
// as in a container that was started again, Enter accepts it.
func (d *Daemon) Enter(stays func(former string) string) error {
	marker := d.Root.Epoch()
	was, now := d.Ledger.Epoch(), d.ThisEpoch()
	if was.Boot == now.Boot && was != now && !d.Moved {
		if _, err := os.Stat(marker); err == nil {
			return fmt.Errorf("%w: start it in the former one; or, if all of its %s are gone, remove %s or use --moved", ErrMoved, d.Owners, marker)
		} else if !noMarker(err) {
			return fmt.Errorf("looking for the marker of this epoch: %w", err)
		}
		if there := stays(EpochText(was)); there != "" {
			return fmt.Errorf("%w, and %s is still there: start the agent in the former one, or use --moved to give up all of its %s", ErrMoved, there, d.Owners)
		}
	}
	if was != now {
		if err := d.Ledger.SetEpoch(now); err != nil {
			return fmt.Errorf("writing down the epoch: %w", err)
		}
	}
	d.markSoon()
	return nil
}

// SameEpoch returns ErrMoved if the last daemon of this boot served in another network
// namespace, unless Options.Moved is set. It is for a daemon whose ledger is lost.
func (d *Daemon) SameEpoch() error {
	was, _, err := ReadMarker(d.Root)
	if err != nil {
		return err
	}
	if strings.HasPrefix(was, d.Boot+"/") && was != d.Epoch && !d.Moved {
		return fmt.Errorf("%w, and its ledger is lost: start it in the former one, or use --moved if all of its %s are gone", ErrMoved, d.Owners)
	}
	return nil
}

// markSoon is mark, but the daemon goes on after any error, because deletions that wait need no
// marker. keepReachable tries again.
func (d *Daemon) markSoon() {
	err := d.mark()
	d.unmarked = err != nil
	if err != nil {
		d.Log.Warn("could not write the marker that keeps an agent without a ledger from starting in another network namespace", "err", err)
	}
}

// mark writes the marker, durably. It writes nothing if the marker is right already,
// because /run may lack the room.
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

// replaceFile writes a file. A crash never leaves a part of it at path. replaceFile also
// replaces what has the file's name and is no file, but for a folder that is not empty.
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
		return fmt.Errorf("removing the folder %s, which is in the place of a file: %w", path, err)
	}
	return os.Rename(tmp, path)
}
