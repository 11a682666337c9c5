package former

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/root"
)

// Bounds of what is read. A node has hundreds of pods; runtimes leave the files of pods whose DEL failed.
const (
	maxFiles = 16384     // in a folder
	maxFile  = 1 << 20   // bytes of a file: the ledger's record of an attachment has 256 KiB (ledger.MaxOwner)
	maxTotal = 256 << 20 // bytes of all files
)

// folder is a folder of files below the root.
type folder struct {
	root root.Dir
	path string
}

// at is the path of a file of the folder, below the root.
func (f folder) at(name string) string { return filepath.Join(f.path, name) }

// names lists a folder's files, in the order of their names, without the folders in it. A folder that is not there has none.
func (f folder) names() ([]string, error) {
	d, err := os.OpenFile(filepath.Join(string(f.root), f.path), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	entries, err := d.ReadDir(maxFiles + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(entries) > maxFiles {
		return nil, fmt.Errorf("%s has more than %d files; remove those of pods that are gone", f.path, maxFiles)
	}
	var names []string
	for _, entry := range entries {
		if !entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// read reads a file of at most maxFile bytes, and returns when it was written, too.
func (f folder) read(name string) ([]byte, time.Time, error) {
	file, err := root.Open(filepath.Join(string(f.root), f.path, name))
	if err != nil {
		return nil, time.Time{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	raw, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(raw) > maxFile {
		err = fmt.Errorf("it has more than %d bytes", maxFile)
	}
	return raw, info.ModTime(), err
}

// reason is an error about a file for people, who see the path beside it.
func reason(err error) string {
	var path *fs.PathError
	switch {
	case errors.Is(err, root.ErrIrregular):
		err = root.ErrIrregular
	case errors.As(err, &path):
		err = path.Err
	}
	return printable(err.Error())
}

// printable is a text as it is, or quoted if it is none that can be shown.
func printable(text string) string {
	if cni.IsShowable(text, maxShown) {
		return text
	}
	return strconv.QuoteToASCII(text[:min(len(text), maxShown)])
}

const maxShown = 1000 // bytes of a text in a message
