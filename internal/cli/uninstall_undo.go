package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-net/berth/internal/cri"
	"github.com/berth-net/berth/internal/root"
)

// undoing is an uninstallation that is under way.
type undoing struct {
	*record
	remove func(path string) (action string, err error) // a configuration or a folder
	take   func(path string) (action string, err error) // a program
	needed func() string                                // why pods need the plugin; "": none does
	kept   string                                       // what needed said
	used   func() (user string, err error)              // the configuration that uses the plugin
	force  bool
	node   cri.Node // whose runtimes may look for networks anywhere
	away   []aside
	done   []fileView
}

// files removes the files of an installation, the configurations first: if a configuration stays,
// the plugin that it uses has to stay, too, and a pod that came meanwhile needs the plugin. Then files
// removes the folders that install made.
func (u *undoing) files(ctx context.Context, files []installedFile) error {
	var confDirs []string
	for _, f := range files {
		if f.Sort == sortConf {
			v, err := u.conf(f.Path)
			if err := u.did(v, err); err != nil {
				return err
			}
			u.done = append(u.done, copies(f.Path)...)
			confDirs = append(confDirs, filepath.Dir(f.Path))
		}
	}
	for _, f := range u.Files { // a configuration that the flags leave alone
		if f.Sort == sortConf {
			confDirs = append(confDirs, filepath.Dir(f.Path))
		}
	}
	all, unread := u.node.Find()
	confDirs = executing(slices.Concat(confDirs, u.Looks, looksNow(all, files)), all, files)
	why, err := u.inUse(confDirs, unread)
	if err != nil {
		return err
	}
	if why == "" {
		u.kept = u.needed()
		why = u.kept
	}
	u.used = func() (string, error) { return usedBy(confDirs, u.done) }
	if err := u.programs(ctx, files, why, othersIn(confDirs, u.done)); err != nil {
		return err
	}
	return u.dirs(all)
}

// looksNow returns where runtimes look for networks. It asks the runtimes of the node that execute
// plugins of these files.
func looksNow(all []cri.Runtime, files []installedFile) (dirs []string) {
	for _, r := range all {
		if executes(r, files) {
			dirs = append(dirs, networks(r)...)
		}
	}
	return dirs
}

// executing leaves out the folders whose networks use no plugin of these files, because every runtime
// that looks for networks there looks for plugins elsewhere. A folder into which no runtime looks that
// Berth knows counts, because another program may.
func executing(confDirs []string, all []cri.Runtime, files []installedFile) []string {
	return slices.DeleteFunc(confDirs, func(dir string) bool {
		known := false
		for _, r := range all {
			if !slices.ContainsFunc(networks(r), func(d string) bool { return sameFile(d, dir) }) {
				continue
			}
			if executes(r, files) {
				return false
			}
			known = true
		}
		return known
	})
}

// executes reports whether a runtime looks for plugins where these files have a program.
func executes(r cri.Runtime, files []installedFile) bool {
	return slices.ContainsFunc(files, func(f installedFile) bool {
		return f.Sort != sortConf && slices.ContainsFunc(r.BinDirs.Paths, func(dir string) bool {
			return sameFile(dir, filepath.Dir(f.Path)) || sameFile(filepath.Join(dir, filepath.Base(f.Path)), f.Path)
		})
	})
}

// sameFile reports whether two paths lead to the same file or folder.
func sameFile(x, y string) bool {
	if filepath.Clean(x) == filepath.Clean(y) {
		return true
	}
	a, err := os.Stat(x)
	if err != nil {
		return false
	}
	b, err := os.Stat(y)
	return err == nil && os.SameFile(a, b)
}

// inUse says which configuration uses the plugin; "": none does. unread is why a runtime's
// configuration could not be read: the runtime may look for networks where the record does not know.
func (u *undoing) inUse(confDirs []string, unread error) (why string, err error) {
	user, err := usedBy(confDirs, u.done)
	switch {
	case err != nil:
		return "", err
	case user != "":
		return user + " uses it", nil
	case unread != nil && !u.force:
		return fmt.Sprintf("a network may use it where berth cannot tell (%v); --force removes it all the same", unread), nil
	}
	return "", nil
}

// programs removes the plugin and its copies for lo, unless a pod or a configuration needs them (why).
// The copies also stay if there are other networks, because the runtime executes the copies for each
// pod. other names the configuration of one such network.
func (u *undoing) programs(ctx context.Context, files []installedFile, why, other string) (err error) {
	var views []fileView
	for _, sort := range []string{sortPlugin, sortLoopback} {
		for _, f := range files {
			if f.Sort != sort {
				continue
			}
			v, err := u.program(f, why, other)
			if err != nil {
				return errors.Join(err, u.settle("an error"))
			}
			views = append(views, v)
		}
	}
	late := ""
	if len(u.away) > 0 {
		u.kept = u.late(ctx)
		if late, err = u.usedMeanwhile(); err != nil {
			return errors.Join(err, u.settle("an error"))
		}
		if err := u.settle(late); err != nil {
			return err
		}
	}
	for _, v := range views {
		if v.Action == "removed" && late != "" {
			v.Action, v.Why = "kept", late
		}
		if err := u.did(v, nil); err != nil {
			return err
		}
	}
	return nil
}

// usedMeanwhile says why programs that are set aside have to come back: a pod needs them, or a
// configuration that the install of another --root has put in place uses them; "": nobody needs them.
func (u *undoing) usedMeanwhile() (why string, err error) {
	if u.kept != "" || u.used == nil {
		return u.kept, nil
	}
	user, err := u.used()
	if user != "" {
		why = user + " uses it by now"
	}
	return why, err
}

// did notes what was done with a file.
func (u *undoing) did(v fileView, err error) error {
	if err != nil {
		return err
	}
	u.done = append(u.done, v)
	if v.Action == "removed" || v.Action == "absent" {
		u.Files = slices.DeleteFunc(u.Files, func(f installedFile) bool { return f.Path == v.File })
	}
	return nil
}

// all reports whether nothing that install has put in place stays.
func (u *undoing) all() bool {
	gone := func(path string) bool {
		return slices.ContainsFunc(u.done, func(v fileView) bool { return v.File == path && v.Action != "kept" })
	}
	return !slices.ContainsFunc(u.Files, func(f installedFile) bool { return !gone(f.Path) }) &&
		!slices.ContainsFunc(u.Dirs, func(dir string) bool { return !gone(dir) })
}

// stillUsed returns the files that people would have to remove, if configurations that somebody has
// edited stay: the runtime goes on to use these configurations, and the programs with them.
func (u *undoing) stillUsed() (paths []string) {
	if !slices.ContainsFunc(u.done, func(v fileView) bool { return v.Why == edited }) {
		return nil
	}
	for _, v := range u.done {
		if name := filepath.Base(v.File); v.Why == edited || v.Action == "kept" && (name == plugin || isLoopback(v.File)) {
			paths = append(paths, v.File)
		}
	}
	return paths
}

// copies returns the copies of a configuration that --overwrite kept.
func copies(path string) (all []fileView) {
	entries, _ := os.ReadDir(filepath.Dir(path)) // none if the folder is not there
	for _, e := range entries {
		if backup := filepath.Join(filepath.Dir(path), e.Name()); strings.HasPrefix(backup, path+".bak") {
			all = append(all, fileView{File: backup, Action: "kept", Why: copied})
		}
	}
	return all
}

// copied is why uninstall keeps a copy.
const copied = "berth install --overwrite kept an edited configuration in it; runtimes ignore it"

// edited is why uninstall keeps a configuration.
const edited = "somebody has edited it"

// conf removes a network's configuration, if it is as install wrote it.
func (u *undoing) conf(path string) (fileView, error) {
	v := fileView{File: path, Action: "kept"}
	have, err := root.ReadFile(path)
	switch was, ours := rootOf(path); {
	case errors.Is(err, os.ErrNotExist):
		v.Action, err = "absent", nil
	case err != nil:
		return v, err
	case ours && filepath.Clean(was) != u.app.root:
		v.Why = "it is for --root " + was
	case u.wrote(path, have):
		v.Action, err = u.remove(path)
	default:
		v.Why = edited
	}
	return v, err
}

// program removes the plugin, or its copy for lo.
func (u *undoing) program(f installedFile, why, other string) (v fileView, err error) {
	v = fileView{File: f.Path, Action: "kept"}
	_, err = os.Lstat(f.Path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		v.Action, err = "absent", nil
	case f.Sort == sortLoopback && !isLoopback(f.Path):
		v.Why = "it is somebody else's by now"
	case why != "":
		v.Why = why
		if f.Sort == sortLoopback {
			v.Why = plugin + " stays, too"
		}
	case f.Sort == sortLoopback && other != "":
		v.Why = fmt.Sprintf("pods of other networks, such as that of %s, may need it for their lo", other)
	default:
		v.Action, err = u.take(f.Path)
	}
	return v, err
}

// dirs removes the folders that install made and that are empty now, the inner ones first. A folder
// in which a runtime looks for networks stays, and is the runtime's from now on: containerd watches
// the folder that was there when it started, and sees nothing in a later folder of the same name.
func (u *undoing) dirs(all []cri.Runtime) error {
	watched := map[string]string{}
	for _, r := range all {
		for _, dir := range networks(r) {
			watched[filepath.Clean(dir)] = r.Name
		}
	}
	for _, dir := range slices.Backward(slices.Clone(u.Dirs)) {
		left := u.leftIn(dir)
		if left != "" {
			u.done = append(u.done, fileView{File: dir, Action: "kept", Why: left + " is in it"})
			continue
		}
		if who := watched[dir]; who != "" {
			u.done = append(u.done, fileView{File: dir, Action: "kept", Why: who + " looks for networks there"})
			u.Dirs = slices.DeleteFunc(u.Dirs, func(d string) bool { return d == dir || strings.HasPrefix(dir, d+"/") })
			continue
		}
		action, err := u.remove(dir)
		if err != nil {
			return err
		}
		u.done = append(u.done, fileView{File: dir, Action: action})
		if action == "removed" || action == "absent" {
			u.Dirs = slices.DeleteFunc(u.Dirs, func(d string) bool { return d == dir })
		}
	}
	return nil
}

// leftIn returns something in a folder that stays there; "" if there is nothing.
func (u *undoing) leftIn(dir string) string {
	entries, _ := os.ReadDir(dir) // a folder that is gone is empty
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !slices.ContainsFunc(u.done, func(v fileView) bool { return v.File == path && v.Action != "kept" }) {
			return e.Name()
		}
	}
	return ""
}
