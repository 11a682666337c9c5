package cli

import (
	"context"
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
		return fmt.Errorf("%s attached: their runtime needs the plugin to detach them; drain the node first, or say --force", count(n, "pod"))
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
	action = "kept, for " + user + " uses it"
	if user == "" {
		if action, err = unplace(f.pluginPath()); err != nil {
			return err
		}
	}
	done = append(done, fileView{f.pluginPath(), action})
	return a.print(done, func() { a.showFiles(done) })
}

// attached returns how many attachments the agent has or, if it is away, its ledger.
func (a *app) attached(ctx context.Context) (int, error) {
	list, err := a.list(ctx, api.Filter{})
	if err == nil {
		return len(list), nil
	}
	s, err := ledger.Read(a.dir().Ledger(), kinds)
	if errors.Is(err, os.ErrNotExist) {
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
