package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-net/berth/internal/doctor"
	"github.com/berth-net/berth/internal/root"
)

// How install puts single files in place, and how install and uninstall show what they did with each
// file.

// fileView is what was done with a file or a folder.
type fileView struct {
	File       string `json:"file"`
	Action     string `json:"action"` // installed, replaced, unchanged, removed, absent, kept
	Why        string `json:"why,omitempty"`
	Difference string `json:"difference,omitempty"` // between the present or former configuration and the configuration of these flags
}

// placeProgram puts the plugin, or its copy for lo, in place.
func (rec *record) placeProgram(path, sort string, program []byte) (fileView, error) {
	if err := rec.note(installedFile{Path: path, Sort: sort}); err != nil {
		return fileView{}, err
	}
	action, err := rec.place(path, program, 0o755)
	if err != nil {
		return fileView{}, fmt.Errorf("installing %s: %w", path, err)
	}
	return fileView{File: path, Action: action}, nil
}

// placeAgain puts back the programs that are gone again, since an uninstall of another root has removed
// them meanwhile. install calls placeAgain when the configuration is in place: from then on the
// configuration keeps another uninstall from removing the programs (usedMeanwhile).
func (rec *record) placeAgain(done []fileView, program []byte) error {
	for _, v := range done {
		name := filepath.Base(v.File)
		if _, err := os.Lstat(v.File); rec.dry || name != plugin && name != loopback || !errors.Is(err, os.ErrNotExist) {
			continue
		}
		if _, err := rec.place(v.File, program, 0o755); err != nil {
			return fmt.Errorf("installing %s: %w", v.File, err)
		}
	}
	return nil
}

// placeLoopback puts a copy of the plugin in place by the name loopback, if the runtime needs a plugin
// of that name and has none but such a copy. The copy is no link: a person who copies the reference
// plugins over a link would write into the plugin.
func (rec *record) placeLoopback(r target, program []byte) (fileView, error) {
	path := filepath.Join(r.bin, loopback)
	if !r.Loopback || r.Has(loopback) && !isLoopback(path) {
		return fileView{}, nil
	}
	v, err := rec.placeProgram(path, sortLoopback, program)
	if strings.HasSuffix(v.Action, "installed") { // or would be
		v.Why = fmt.Sprintf("%s needs a plugin of this name for each pod, and there was none: it is %s", r.who(), plugin)
	}
	return v, err
}

// isLoopback reports whether a path is install's copy of the plugin or, as former versions made it,
// install's link to the plugin.
func isLoopback(path string) bool {
	if to, err := os.Readlink(path); err == nil {
		return to == plugin
	}
	raw, err := root.ReadFile(path)
	return err == nil && doctor.IsPlugin(raw)
}

// placeConf puts a configuration in place, unless somebody has edited the one that is there.
func (rec *record) placeConf(path string, text []byte, options confOptions, overwrite bool) (fileView, error) {
	v := fileView{File: path, Action: "kept"}
	have, err := root.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return v, fmt.Errorf("installing %s: %w", path, err)
	case bytes.Equal(have, text) || rec.wrote(path, have):
	default:
		v.Difference = difference(path, have, text)
		if !overwrite {
			v.Why = "somebody has edited it; --overwrite replaces it, and keeps a copy"
			return v, nil
		}
		backup, err := rec.keep(path, have)
		if err != nil {
			return v, fmt.Errorf("keeping a copy of %s: %w", path, err)
		}
		v.Why = "of --overwrite; what was there is " + backup
		if rec.dry {
			v.Why = "of --overwrite; what is there would be kept as " + backup
		}
	}
	file := installedFile{Path: path, Sort: sortConf, Sums: []string{sum(have), sum(text)}, Options: &options}
	if err := rec.note(file); err != nil {
		return v, err
	}
	if v.Action, err = rec.place(path, text, 0o644); err != nil {
		return v, fmt.Errorf("installing %s: %w", path, err)
	}
	file.Sums = []string{sum(text)}
	return v, rec.note(file)
}

func (a *app) showFiles(files []fileView) {
	t := newTable("FILE", "RESULT")
	for _, f := range files {
		if f.Why != "" {
			f.Action += ", because " + strings.TrimPrefix(f.Why, "because ")
		}
		t.row(f.File, f.Action)
	}
	a.table(t)
}
