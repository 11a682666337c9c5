package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/boottime"
)

// replaceBy is how many ops of a new ledger share a transaction.
const replaceBy = 512

// Replace makes a new ledger of ops, in the place of one that is lost or damaged. It does so
// completely or, on an error, not at all. It keeps the old file beside the new one, and returns the
// old file's new name; "" if there was no file, or an empty one. If an agent has the ledger open
// the error is ErrLocked. Replace uses only Path, Kinds, Clock and Boot of the options.
//
// If the last step fails, which makes the new file's name durable, Replace returns the error and
// nevertheless the old file's new name: the new ledger is in place. The next Open tries that step
// again.
func Replace(opts Options, ops []Op) (kept string, err error) {
	kept, err = replace(opts, ops)
	if err != nil {
		err = fmt.Errorf("replacing ledger: %w", err)
	}
	return kept, err
}

func replace(opts Options, ops []Op) (string, error) {
	if opts.Clock == nil {
		opts.Clock = boottime.NewClock(nil, nil)
	}
	if opts.volume == nil {
		opts.volume = local{}
	}
	var err error
	if opts.Path, err = resolve(opts.Path); err != nil {
		return "", explain(err)
	}
	// If we get the lock, no agent has the file open, and none can start meanwhile.
	f, err := os.OpenFile(opts.Path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", explain(err)
	}
	defer f.Close()
	size, err := lockFile(f, opts.Path, unix.LOCK_EX)
	if err != nil {
		return "", err
	}
	if size < 0 {
		return "", fmt.Errorf("%w: another file has just taken the place of %s", ErrLocked, opts.Path)
	}
	if err := removeAsides(opts); err != nil {
		return "", err
	}
	next := opts.Path + ".rebuilt"
	if err := fill(next, opts, ops); err != nil {
		return "", errors.Join(err, removeFile(next))
	}
	kept := ""
	if size > 0 {
		kept = fmt.Sprintf("%s.damaged-%s", opts.Path, opts.Clock.Wall(opts.Clock.Now()).UTC().Format("20060102T150405.000000000Z"))
		if err := opts.volume.link(opts.Path, kept); err != nil {
			return "", errors.Join(err, removeFile(next))
		}
	}
	if err := opts.volume.rename(next, opts.Path); err != nil {
		err = errors.Join(err, removeFile(next))
		if info, bad := f.Stat(); kept != "" && bad == nil && namedOne(opts.Path, info) == nil {
			err = errors.Join(err, removeFile(kept)) // kept is not the file's only name
		}
		return "", err
	}
	if err := opts.volume.syncDir(filepath.Dir(opts.Path)); err != nil {
		if kept != "" {
			err = fmt.Errorf("%w (the former one is kept as %s)", err, kept)
		}
		return kept, fmt.Errorf("the new ledger is in place, but could be lost if the power fails now: %w", err)
	}
	return kept, nil
}

// fill makes a ledger of ops. It deletes a half-made ledger of an earlier try.
func fill(path string, opts Options, ops []Op) error {
	if err := removeFile(path); err != nil {
		return err
	}
	l, err := Open(Options{Path: path, Kinds: opts.Kinds, Clock: opts.Clock, Boot: opts.Boot})
	if err != nil {
		return err
	}
	for len(ops) > 0 && err == nil {
		n := min(replaceBy, len(ops))
		err = l.Commit(context.Background(), ops[:n]...)
		ops = ops[n:]
	}
	return errors.Join(err, l.Close())
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
