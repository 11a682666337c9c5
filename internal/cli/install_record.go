package cli

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-net/berth/internal/cri"
	"github.com/berth-net/berth/internal/root"
)

// record is what install has put in place for an agent. uninstall goes by the record, and install
// tells by it whether somebody has edited a configuration.
type record struct {
	Files []installedFile `json:"files"`
	Dirs  []string        `json:"dirs"` // that install has made, the outer ones first
	// Looks are the folders in which the runtimes look for networks, including their handlers'
	// folders.
	Looks []string `json:"looks,omitempty"`

	app *app
	dry bool // nothing is written, neither the record nor the files that it names
}

// installedFile is a file that install has put in place.
type installedFile struct {
	Path    string       `json:"path"`
	Sort    string       `json:"sort"`
	Sums    []string     `json:"sums,omitempty"`    // of a configuration: the hashes (see sum) of what install wrote, or was about to write
	Options *confOptions `json:"options,omitempty"` // of a configuration
}

// Sorts of files.
const (
	sortPlugin   = "plugin"
	sortLoopback = "loopback"
	sortConf     = "configuration"
)

// recordPath is the record's file.
func (a *app) recordPath() string { return filepath.Join(a.dir().State(), "installed.json") }

// record reads the record from its file. Without a file the record is empty.
func (a *app) record() (*record, error) {
	rec := &record{Files: []installedFile{}, Dirs: []string{}, app: a}
	raw, err := root.ReadFile(a.recordPath())
	if errors.Is(err, os.ErrNotExist) {
		return rec, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, rec)
	}
	if err != nil {
		return nil, fmt.Errorf("reading what berth install did before: %s: %w (without this file, what is in place counts as somebody else's)", a.recordPath(), err)
	}
	return rec, nil
}

// file returns what is noted of a path; nil: nothing.
func (rec *record) file(path string) *installedFile {
	i := slices.IndexFunc(rec.Files, func(f installedFile) bool { return f.Path == path })
	if i < 0 {
		return nil
	}
	return &rec.Files[i]
}

// note notes a file before it is put in place, and the folders that have to be made for it. So a
// file that is there is in the record, whatever happens in between.
func (rec *record) note(f installedFile) error {
	for dir := filepath.Dir(f.Path); ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); err == nil || dir == filepath.Dir(dir) {
			break
		}
		if !slices.Contains(rec.Dirs, dir) {
			rec.Dirs = append(rec.Dirs, dir)
		}
	}
	slices.Sort(rec.Dirs)
	if known := rec.file(f.Path); known != nil {
		*known = f
	} else {
		rec.Files = append(rec.Files, f)
	}
	return rec.save()
}

// place is app.place or, in a dry run, says what app.place would do.
func (rec *record) place(path string, content []byte, mode os.FileMode) (action string, err error) {
	if !rec.dry {
		return rec.app.place(path, content, mode)
	}
	action, err = placing(path, content, mode)
	if err == nil && action != "unchanged" {
		action = "would be " + action
	}
	return action, err
}

// alone reports whether the state folder has nothing but the record.
func (rec *record) alone() bool {
	path := rec.app.recordPath()
	entries, err := os.ReadDir(filepath.Dir(path))
	return err == nil && len(entries) == 1 && entries[0].Name() == filepath.Base(path)
}

// looks notes where runtimes look for networks, for the next save.
func (rec *record) looks(to targets) {
	for _, r := range to {
		rec.Looks = append(rec.Looks, networks(r.Runtime)...)
	}
	slices.Sort(rec.Looks)
	rec.Looks = slices.Compact(rec.Looks)
}

// networks returns the folders in which a runtime looks for networks.
func networks(r cri.Runtime) []string {
	return append([]string{r.Conf()}, slices.Sorted(maps.Values(r.Handlers))...)
}

// save writes the record. An empty record leaves no file.
func (rec *record) save() error {
	if rec.dry {
		return nil
	}
	path := rec.app.recordPath()
	if len(rec.Files)+len(rec.Dirs) == 0 {
		_, err := unplace(path)
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		_ = os.Remove(filepath.Dir(path)) // fails if the agent has something in the folder
		return err
	}
	raw, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil { // as the agent makes it
		return err
	}
	_, err = rec.app.place(path, append(raw, '\n'), 0o600)
	return err
}

// wrote reports whether a configuration is as an install wrote it, of this root or of the root that
// the configuration names.
func (rec *record) wrote(path string, have []byte) bool {
	of := rec
	if was, there := rootOf(path); there && filepath.Clean(was) != rec.app.root {
		other := *rec.app
		other.root = filepath.Clean(was)
		var err error
		if of, err = other.record(); err != nil {
			return false
		}
	}
	if f := of.file(path); f != nil && slices.Contains(f.Sums, sum(have)) {
		return true
	}
	plain, err := of.app.conflist(nameOf(have), confOptions{}) // as an install writes it that keeps no record
	return err == nil && string(plain) == string(have)
}

// nameOf returns the name of a configuration's network.
func nameOf(raw []byte) string {
	var conf struct{ Name string }
	_ = json.Unmarshal(raw, &conf) // what cannot be read has no name
	return conf.Name
}

func sum(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }
