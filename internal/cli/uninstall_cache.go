package cli

import (
	"cmp"
	"encoding/json"
	"path/filepath"

	"github.com/berth-net/berth/internal/former"
	"github.com/berth-net/berth/internal/root"
)

// removeCached removes what the runtime's libcni has kept of this root's pods (CNI 1.1, section 4, "Cached results"). There is something only if
// pods ended after the runtime's network had become another CNI's: libcni removes an attachment's file at a DEL of the same network.
func (a *app) removeCached(dryRun bool) (done []fileView, err error) {
	remove := unplace
	if dryRun {
		remove = present
	}
	all, _, err := former.Read(a.dir())
	if err != nil {
		return nil, err
	}
	for _, f := range all {
		if !f.Own() || rootIn(f.Plugins[0]) != a.root {
			continue
		}
		v := fileView{File: filepath.Join(a.root, f.Path)}
		if v.Action, err = remove(v.File); err != nil {
			return done, err
		}
		done = append(done, v)
	}
	return done, nil
}

// rootIn returns the root that a plugin's configuration names.
func rootIn(plugin json.RawMessage) string {
	var conf struct{ Root string }
	_ = json.Unmarshal(plugin, &conf) // former.Read has decoded it
	return filepath.Clean(cmp.Or(conf.Root, string(root.Default)))
}
