package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/root"
)

// uninstall removes the configuration, and then the plugin unless another
// configuration uses it.
func (a *app) uninstall(ctx context.Context, f installFlags) error {
	n, err := a.attached(ctx)
	if err != nil && !f.force {
		return fmt.Errorf("cannot tell whether pods are attached: %w (--force removes the plugin all the same)", err)
	}
	if n > 0 && !f.force {
		return fmt.Errorf("%s attached: their runtime needs the plugin to detach them; drain the node first, or use --force", count(n, "pod"))
	}
	var done []fileView
	action, err := unplace(f.confPath())
	if err != nil {
		return err
	}
	done = append(done, fileView{f.confPath(), action})
	user, err := usedBy(f.confDir)
	if err != nil {
		return err
	}
	action = "kept, because " + user + " uses it"
	if user == "" {
		if action, err = unplace(f.pluginPath()); err != nil {
			return err
		}
	}
	done = append(done, fileView{f.pluginPath(), action})
	return a.print(done, func() { a.showFiles(done) })
}

// attached returns how many attachments the agent has or, if it is away, its ledger. A lost
// ledger cannot tell: only where no agent has ever run are there no attachments.
func (a *app) attached(ctx context.Context) (int, error) {
	list, err := a.list(ctx, api.Filter{})
	if err == nil {
		return len(list), nil
	}
	s, err := ledger.Read(a.dir().Ledger(), kinds)
	if errors.Is(err, os.ErrNotExist) {
		for _, trace := range []string{a.dir().Instance(), a.dir().Epoch()} {
			if _, there := os.Lstat(trace); !errors.Is(there, os.ErrNotExist) {
				return 0, fmt.Errorf("%w, but an agent has run here: %s exists", err, trace)
			}
		}
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n := 0
	for _, o := range s.Owners {
		if _, ok, err := attachment.Decode(o); ok && err == nil {
			n++
		}
	}
	return n, nil
}

// stays refuses another root than that of a configuration that is in place, while pods
// are attached with it: their DEL would go to an agent that knows nothing of them.
func (a *app) stays(ctx context.Context, f installFlags) error {
	was, there := rootOf(f.confPath())
	if !there || filepath.Clean(was) == a.root || f.force {
		return nil
	}
	former := *a
	former.root = filepath.Clean(was)
	n, err := former.attached(ctx)
	if err != nil {
		return fmt.Errorf("cannot tell whether pods are attached with --root %s, which the present %s names: %w (--force replaces that file all the same)", was, f.confPath(), err)
	}
	if n > 0 {
		return fmt.Errorf("%s attached with --root %s, which the present %s names: their runtime needs that file to detach them; drain the node first, or use --force",
			count(n, "pod"), was, f.confPath())
	}
	return nil
}

// rootOf returns the root that a configuration has for the plugin; false: it is not
// there, or is not for the plugin.
func rootOf(path string) (dir string, there bool) {
	raw, err := root.ReadFile(path)
	if err != nil {
		return "", false
	}
	var conf struct {
		Plugins []struct {
			Type string `json:"type"`
			Root string `json:"root"`
		} `json:"plugins"`
	}
	if json.Unmarshal(raw, &conf) != nil {
		return "", false
	}
	for _, p := range conf.Plugins {
		if p.Type == plugin {
			return cmp.Or(p.Root, string(root.Default)), true
		}
	}
	return "", false
}

// usedBy returns the name of a configuration in dir that names the plugin; "" if there is
// none.
func usedBy(dir string) (string, error) {
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	for _, file := range files {
		raw, err := root.ReadFile(filepath.Join(dir, file.Name()))
		if err == nil && strings.Contains(string(raw), `"`+plugin+`"`) {
			return file.Name(), nil
		}
	}
	return "", nil
}
