package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-net/berth/internal/root"
)

// place gives a file its content and mode. At every moment, also after a power cut, the
// path has a whole file: the old one or the new one. So place can replace a program that is
// being executed (writing to it would fail with ETXTBSY). A process that reads the folder
// meanwhile may see a hidden file, which runtimes do not take for a configuration. If
// this process is killed, the next install or uninstall removes that file (record.sweep).
func (a *app) place(path string, content []byte, mode os.FileMode) (action string, err error) {
	action, err = placing(path, content, mode)
	if err != nil || action == "unchanged" {
		return action, err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*"+a.tmp())
	if err != nil {
		return "", err
	}
	defer os.Remove(tmp.Name()) // if all goes well, the file has its new name by then
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err != nil {
		return "", fmt.Errorf("writing %s: %w", tmp.Name(), err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return "", err
	}
	return action, syncDir(dir)
}

// placing says what place would do.
func placing(path string, content []byte, mode os.FileMode) (action string, err error) {
	have, err := root.ReadFile(path)
	switch info, statErr := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
		return "installed", nil
	case err != nil:
		return "", err
	case statErr == nil && info.Mode() == mode && bytes.Equal(have, content):
		return "unchanged", nil
	}
	return "replaced", nil
}

// unplace removes a file for good.
func unplace(path string) (action string, err error) {
	if err := os.Remove(path); errors.Is(err, os.ErrNotExist) {
		return "absent", nil
	} else if err != nil {
		return "", err
	}
	return "removed", syncDir(filepath.Dir(path))
}

// syncDir makes a folder's entries durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
