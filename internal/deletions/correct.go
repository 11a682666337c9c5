package deletions

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
)

// Correct replaces the file of a deletion that Write has queued with one that says how the DEL
// ended: Cut and Again of r. Until then, and after an error, the deletion is queued as it was. If
// the agent does the deletion meanwhile, Correct may queue it once more, which does no harm: the
// deletion spares attachments that began after it.
func Correct(dir root.Dir, r Record) error {
	begins := keyName(r.Network, r.Container, r.Ifname) + "-" + hexText(uint64(r.Started)) + "-"
	content, err := r.encode()
	if err != nil {
		return fmt.Errorf("correcting the deletion: %w", err)
	}
	f, err := openFolder(dir)
	if err != nil {
		return fmt.Errorf("correcting the deletion: %w", err)
	}
	defer f.close()
	names, err := f.list()
	for _, name := range names {
		if err != nil || !strings.HasPrefix(name, begins) {
			continue
		}
		if e, readErr := f.read(name); readErr == nil && e.Record.Link == r.Link { // else the deletion is done, or is of another result of ADD
			err = f.replace(name, content)
		}
	}
	if err != nil {
		return fmt.Errorf("correcting the deletion: %w", err)
	}
	return nil
}

// replace puts a new file in another's place.
func (f *folder) replace(name string, content []byte) error {
	tmp, err := f.writeTmp(content)
	if err != nil {
		return err
	}
	if err := unix.Renameat(f.fd, tmp, f.fd, name); err != nil {
		_ = unix.Unlinkat(f.fd, tmp, 0)
		return fmt.Errorf("renaming %s in %s: %w", tmp, f.path, err)
	}
	return nil
}
