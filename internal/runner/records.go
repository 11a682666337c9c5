package runner

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/cni"
)

// ErrServed says that another runner serves the root.
var ErrServed = errors.New("another berth-runner serves this root")

// tokenVariable is in the environment of each plugin, and so of all processes that it starts. Its value
// is the token of the execution's record.
const tokenVariable = "BERTH_RUN"

// record says that a plugin runs. It is an empty file called TOKEN.CONTAINER, so that a full disk has
// room for it if it has room for a name.
type record struct{ token, container string }

func (r record) name() string { return r.token + "." + r.container }

// records are the records of a root, in a folder that ends with the boot, as the plugins do. Whoever has
// locked the folder is the root's runner.
type records struct{ folder *os.File }

// openRecords makes and locks the folder. It fails with ErrServed if another runner has locked it.
func openRecords(path string) (*records, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of the plugins that run: %w", err)
	}
	folder, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the folder of the plugins that run: %w", err)
	}
	if err := unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrServed
		}
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), folder.Close())
	}
	return &records{folder}, nil
}

// close gives the folder free to another runner.
func (r *records) close() error { return r.folder.Close() }

// begin makes the record of an execution that begins. Even if the record cannot be made, rec has a token.
func (r *records) begin(container string) (rec record, err error) {
	var token [8]byte
	_, _ = rand.Read(token[:]) // it never fails
	rec = record{hex.EncodeToString(token[:]), container}
	f, err := os.OpenFile(filepath.Join(r.folder.Name(), rec.name()), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return rec, fmt.Errorf("writing down that a plugin runs: %w", err)
	}
	return rec, f.Close()
}

// end removes the record of an execution that has ended.
func (r *records) end(rec record) {
	_ = os.Remove(filepath.Join(r.folder.Name(), rec.name())) // what stays names no process
}

// left returns the records that a runner which was killed has left. What is no record is left alone.
func (r *records) left() (left []record, _ error) {
	entries, err := os.ReadDir(r.folder.Name())
	if err != nil {
		return nil, fmt.Errorf("looking for plugins of a runner that was killed: %w", err)
	}
	for _, e := range entries {
		token, container, ok := strings.Cut(e.Name(), ".")
		_, err := hex.DecodeString(token)
		if ok && err == nil && len(token) == 16 && (container == "" || cni.CheckContainerID(container) == nil) {
			left = append(left, record{token, container})
		}
	}
	return left, nil
}
