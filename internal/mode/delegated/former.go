package delegated

import (
	"path/filepath"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/former"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/delegate"
	"github.com/berth-net/berth/internal/root"
)

// Former returns the owner of an attachment that a former CNI made. The owner is complete: no plugin's ADD is ever executed for it. Its
// release executes DEL of the plugins that are in folders, as the former CNI would have, and deletes that CNI's files below dir.
func Former(id hold.ID, r attachment.Record, a former.Attachment, folders []string, dir root.Dir) hold.Owner {
	s := &delegate.Spec{
		ID: id, Network: a.Network, Version: a.Version, Container: a.Container, Netns: r.Netns, Ifname: a.Ifname,
		Args: a.Args, Folders: folders, DisableCheck: a.DisableCheck, Result: string(a.Result), Done: true,
	}
	for _, p := range a.Plugins {
		s.Plugins = append(s.Plugins, string(p))
	}
	for _, path := range append([]string{a.Path}, a.Beside...) {
		s.Files = append(s.Files, filepath.Join(string(dir), path))
	}
	return hold.Owner{ID: id, Meta: r.Encode(), Holds: []hold.Hold{{Owner: id, Spec: s}}}
}
