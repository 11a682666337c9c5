package nad

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
	"github.com/berth-net/berth/internal/root"
)

// maxFiles is how many entries of a folder FindFile looks at.
const maxFiles = 1024

// FindFile finds a network's configuration in a folder by its name, as libcni does: the first .conflist, in
// the order of file names, and if there is none, the first .conf or .json. If the file has a list, and does
// not say loadOnlyInlinedPlugins, the plugins in NAME/*.conf beside it come after those in the file.
//
// libcni fails at the first file that it cannot read, whatever network is in it. FindFile passes over such a
// file, and mentions it if it finds none.
func FindFile(dir, name string) (*Network, *api.Error) {
	if e := cni.CheckNetworkName(name); e != nil {
		return nil, e
	}
	var unread []error
	for _, endings := range [][]string{{".conflist"}, {".conf", ".json"}} {
		paths, err := files(dir, endings)
		if err != nil {
			return nil, ioError(err)
		}
		for _, path := range paths {
			raw, err := root.ReadBounded(path, maxText)
			if err == nil {
				var given string
				if given, err = nameIn(raw); err == nil && given == name {
					return parseFile(path, raw)
				}
			}
			if err != nil {
				unread = append(unread, fmt.Errorf("%s: %w", path, err))
			}
		}
	}
	e := cni.Errorf(cni.CodeConfig, "no configuration of the network is found", "no file of %s has a configuration whose name is %q", dir, name)
	if err := errors.Join(unread[:min(len(unread), 8)]...); err != nil {
		e.Details += "; some cannot be read: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return nil, e
}

// ReadPath reads the network's configuration in a file, or, if the path is a folder's, in the folder's first file by
// name that has one.
func ReadPath(path string) (*Network, *api.Error) {
	if info, err := os.Stat(path); err != nil {
		return nil, ioError(err)
	} else if info.IsDir() {
		paths, err := files(path, []string{".conflist", ".conf", ".json"})
		if err != nil {
			return nil, ioError(err)
		}
		if len(paths) == 0 {
			return nil, cni.Errorf(cni.CodeConfig, "no configuration of the network is found", "%s has no .conflist, .conf or .json", path)
		}
		path = paths[0]
	}
	raw, err := root.ReadBounded(path, maxText)
	if err != nil {
		return nil, ioError(err)
	}
	return parseFile(path, raw)
}

func ioError(err error) *api.Error {
	return cni.Errorf(cni.CodeIO, "reading a network's configuration", "%v", err)
}

// parseFile reads the file of a network, and what lies beside it.
func parseFile(path string, raw []byte) (*Network, *api.Error) {
	n, e := parseConfig(raw, "")
	if e == nil {
		e = n.addBeside(path, raw)
	}
	if e != nil {
		return nil, cni.Errorf(e.Code, e.Msg, "%s: %s", path, e.Details)
	}
	return n, nil
}

// addBeside appends the plugins that lie beside a list (libcni 1.3).
func (n *Network) addBeside(path string, raw []byte) *api.Error {
	fields, err := scan.Object(raw)
	if err != nil {
		return cni.DecodeError(err)
	}
	only, e := boolOf(fields, "loadOnlyInlinedPlugins")
	if e != nil {
		return e
	}
	if fields.Get("type") == nil && !only {
		paths, err := files(filepath.Join(filepath.Dir(path), n.Name), []string{".conf"})
		if err != nil {
			return ioError(err)
		}
		for _, beside := range paths {
			raw, err := root.ReadBounded(beside, maxText)
			if err != nil {
				return ioError(err)
			}
			p, e := parsePlugin(filepath.Join(n.Name, filepath.Base(beside))+": ", raw)
			if e != nil {
				return e
			}
			n.Plugins = append(n.Plugins, p)
		}
	}
	if len(n.Plugins) == 0 || len(n.Plugins) > maxPlugins {
		return cni.Errorf(cni.CodeConfig, "invalid configuration", "it has %d plugins; expected 1 to %d, in the list or beside it", len(n.Plugins), maxPlugins)
	}
	return nil
}

// nameIn returns the name in a configuration; "" if it has none.
func nameIn(raw []byte) (string, error) {
	fields, err := scan.Object(raw)
	if err != nil {
		return "", err
	}
	return fields.Text("name")
}

// files lists a folder's files with one of some endings, in the order of their names. A folder that is not
// there has none.
func files(dir string, endings []string) ([]string, error) {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0) // a FIFO would keep it waiting otherwise
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	entries, err := d.ReadDir(maxFiles)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(entries) == maxFiles {
		return nil, fmt.Errorf("%s has %d entries or more; expected a folder of configurations", dir, maxFiles)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	var paths []string
	for _, entry := range entries {
		if !entry.IsDir() && slices.Contains(endings, filepath.Ext(entry.Name())) {
			paths = append(paths, filepath.Join(dir, entry.Name()))
		}
	}
	return paths, nil
}
