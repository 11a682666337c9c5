package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/stamp"
)

// ErrMoved says that the agent was started in another network namespace than
// before, though the node has not been rebooted.
var ErrMoved = errors.New("started in another network namespace than before")

// ErrInstanceLost says that there is a ledger without the instance id by which
// what it says can be found: under another one nothing could be released.
var ErrInstanceLost = errors.New("the agent's instance id is lost")

// ErrOtherInstance says that the state folder is not the one that an agent served
// from last, and that pods of that agent's are still here.
var ErrOtherInstance = errors.New("the state folder is another one than the agent served from last")

// markerName is the file in the run folder that a reboot takes away: the epoch
// that an agent of this root entered last, and on a second line its instance id.
const markerName = "epoch"

// readMarker returns what the marker says; what it does not say, or all of it if
// there is none, or no file, is "".
func readMarker(dir root.Dir) (epoch, instance string, err error) {
	raw, err := root.ReadFile(filepath.Join(dir.Run(), markerName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, root.ErrIrregular) {
		return "", "", fmt.Errorf("looking for the marker of this epoch: %w", err)
	}
	epoch, instance, _ = strings.Cut(string(raw), "\n")
	return strings.TrimSpace(epoch), strings.TrimSpace(instance), nil
}

// thisEpoch is the boot and the network namespace that this agent lives in.
func thisEpoch(boot string, self ns.Ref) ledger.Epoch {
	e := ledger.Epoch{Boot: boot}
	e.Netns.Dev, e.Netns.Ino, e.Netns.ID = self.Dev, self.Ino, self.ID
	return e
}

// epochText is an epoch as records and tombstones have it.
func epochText(e ledger.Epoch) string {
	return fmt.Sprintf("%s/%d/%d/%d", e.Boot, e.Netns.Dev, e.Netns.Ino, e.Netns.ID)
}

// enterEpoch compares the epoch with the ledger's. After a reboot the new one is
// written down. In the same boot another netns is most likely a mistake, that
// would release every pod of the node: it is refused unless the run folder's
// marker is gone as well, or moved says that it is meant.
func enterEpoch(l *ledger.Ledger, now ledger.Epoch, dir root.Dir, instance string, moved bool) error {
	marker := filepath.Join(dir.Run(), markerName)
	was := l.Epoch()
	if was.Boot == now.Boot && was != now && !moved {
		if _, err := os.Stat(marker); err == nil {
			return fmt.Errorf("%w: start it where it ran, or remove %s (or say --moved) if all of its pods are gone", ErrMoved, marker)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("looking for the marker of this epoch: %w", err)
		}
	}
	if was != now {
		if err := l.SetEpoch(now); err != nil {
			return fmt.Errorf("writing down the epoch: %w", err)
		}
	}
	return writeMarker(dir, now, instance)
}

// refuseOther refuses a state folder that was put, or mounted, in the place of the one
// that an agent served from in this epoch, while pods of that one's are here: by this
// one's instance id and ledger they are nobody's. Those that queued deletions name are
// left out: the deletions adopt them.
func (a *Agent) refuseOther() error {
	entered, was, err := readMarker(a.Root)
	if err != nil {
		return err
	}
	if _, bad := hold.ParseID(was); bad != nil || was == a.instance || entered != a.epoch {
		return nil
	}
	links, err := steady(func() ([]rtnl.Link, error) { return a.conn.Veths(ofInstance(was)) })
	if err != nil {
		return fmt.Errorf("looking for the links of the agent that served here last: %w", err)
	}
	left, err := a.undoomed(links)
	if err != nil {
		return err
	}
	marker := filepath.Join(a.Root.Run(), markerName)
	if len(left) == 0 {
		a.Log.Warn("the state folder is another one than the agent served from last; none of that agent's pods is left, and its table and routes may be",
			"instance", a.instance, "was", was, "table", stamp.Table(was))
		return nil
	}
	return fmt.Errorf("%w, and %d links of that agent's pods are here (%s ...): %s says %s, and %s says %s: "+
		"take away what was mounted over the former folder, or put it back; or delete these pods, and start it then; "+
		"or remove %s, if nobody will ever delete them",
		ErrOtherInstance, len(left), left[0].Name, a.Root.Instance(), a.instance, marker, was, marker)
}

// writeMarker writes the marker, durably.
func writeMarker(dir root.Dir, now ledger.Epoch, instance string) error {
	err := replaceFile(filepath.Join(dir.Run(), markerName), epochText(now)+"\n"+instance+"\n")
	if err != nil {
		return fmt.Errorf("writing the marker of this epoch: %w", err)
	}
	return nil
}

// loadInstance returns the agent's instance id, and whether it was minted now, as the
// first start does.
// One whose file is lost is taken from the marker, as long as there is one. taken
// reports whether a prefix is in use in this network namespace already.
//
// One process at a time does so: of two agents that start at once the ledger's lock
// lets one serve, and that comes later. Each would mint an id, and the file could
// have that of the one that gives up.
func loadInstance(dir root.Dir, taken func(instance string) (bool, error)) (id string, minted bool, err error) {
	state, err := os.Open(dir.State())
	if err != nil {
		return "", false, fmt.Errorf("opening the state folder: %w", err)
	}
	defer state.Close()
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(state.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return "", false, fmt.Errorf("locking %s: %w", dir.State(), err)
	}
	return readOrMint(dir, taken)
}

// readOrMint is loadInstance for whoever has the state folder's lock.
func readOrMint(dir root.Dir, taken func(instance string) (bool, error)) (id string, minted bool, err error) {
	raw, err := root.ReadFile(dir.Instance())
	if err == nil {
		id, err := hold.ParseID(strings.TrimSpace(string(raw)))
		if err != nil {
			return "", false, fmt.Errorf("reading %s: %w", dir.Instance(), err)
		}
		return string(id), false, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", false, fmt.Errorf("reading the instance id: %w", err)
	}
	_, was, err := readMarker(dir)
	if err != nil {
		return "", false, err
	}
	if id, err := hold.ParseID(was); err == nil {
		return string(id), false, writeInstance(dir, string(id))
	}
	if _, err := os.Stat(dir.Ledger()); err == nil {
		return "", false, fmt.Errorf("%w: %s is missing beside %s: write it there again, it is what follows \"berth-\" in the name of its table "+
			"(nft list tables); or, if the node was rebooted since, remove the ledger as well: none of its pods is left",
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
