package delegate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
)

// GCTime is how long the plugins of one network may take for GC, all of them together. ADDs of the network wait no longer.
const GCTime = 5 * time.Second

// Keys of the attachments that GC spares (CNI 1.1, section 4, GC). The second is from an early print of the specification; libcni sends both.
var validKeys = []string{"cni.dev/valid-attachments", "cni.dev/attachments"}

// ofAttachments are keys of a plugin's configuration that are about one attachment (CNI conventions): GC is about the network.
var ofAttachments = []string{"runtimeConfig", "args", "prevResult"}

// GC has the plugins of each network give back what belongs to none of the network's attachments (CNI 1.1, section 4, GC). kept returns the
// specs in the ledger, those that are being released too: their DELs are owed, and are the ledger's.
//
// The configurations are those of the attachments in the ledger, each once, and the last one for which this run has executed an ADD: leftovers
// can fill a network so that no ADD succeeds, and then the ledger has no attachment of the network. No definition and no
// file is read: one that nobody has used on this node may have the name of a network that is not Berth's, whose
// addresses GC would take away. What a former CNI has made is spared, and is no reason to execute its plugins.
//
// An ADD that begins during its network's GC waits (await). An ADD that is under way does not stop a GC, though the specification would have
// the GC wait (section 3, "Lifecycle & Ordering"): the ledger has had its attachment since before the ADD, so that the list has
// it, and on a busy node a GC that waits for a moment without ADDs may never come. A DEL goes on beside a GC for the same reason.
//
// The networks have their turns one after the other, so that plugins that hang occupy one of the runner's places. words are what
// people might want to know, and no errors.
func (d *Delegates) GC(ctx context.Context, kept func() []*Spec) (words []string, err error) {
	networks := d.collectable(kept())
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		if ctx.Err() != nil {
			errs = append(errs, fmt.Errorf("network %s: its plugins had no turn: %w", name, ctx.Err()))
			continue
		}
		said, err := d.gcNetwork(ctx, name, networks[name], kept)
		words, errs = append(words, said...), append(errs, err)
	}
	return words, errors.Join(errs...)
}

// collectable returns the lists of plugins whose GC is to be executed, by their networks. If one list of a network says disableGC, none of them
// is: the network's attachments are others', too.
func (d *Delegates) collectable(kept []*Spec) map[string][]*Spec {
	lists := map[string]map[string]*Spec{} // by network and text
	put := func(s *Spec) {
		if lists[s.Network] == nil {
			lists[s.Network] = map[string]*Spec{}
		}
		lists[s.Network][strings.Join(append([]string{s.Version, s.Type, s.path()}, s.Plugins...), "\n")] = s
	}
	disabled := map[string]bool{}
	for _, s := range append(d.lately(), kept...) {
		if s.DisableGC {
			disabled[s.Network] = true
		}
		if l, err := s.list(); err == nil && s.Run != "" && s.since("1.1.0") { // a list that cannot be read has executed nothing
			put(l)
		}
	}
	all := map[string][]*Spec{}
	for name, texts := range lists {
		if disabled[name] {
			continue
		}
		for _, text := range slices.Sorted(maps.Keys(texts)) {
			all[name] = append(all[name], texts[text])
		}
	}
	return all
}

// list returns what a spec says of its network, without its attachment.
func (s *Spec) list() (*Spec, error) {
	l := &Spec{Network: s.Network, Version: s.Version, Type: s.Type, Folders: s.Folders, DisableGC: s.DisableGC, Run: s.Run}
	all, err := s.plugins()
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		for _, key := range ofAttachments {
			delete(p.config, key)
		}
		raw, err := json.Marshal(p.config)
		if err != nil {
			return nil, fmt.Errorf("encoding the configuration of plugin %s: %w", p.name, err)
		}
		l.Plugins = append(l.Plugins, string(raw))
	}
	return l, nil
}

// gcNetwork executes GC of the plugins of a network's lists. All are tried.
func (d *Delegates) gcNetwork(ctx context.Context, name string, lists []*Spec, kept func() []*Spec) (words []string, err error) {
	var all []plugin
	var of []*Spec
	var lost []error
	for _, l := range lists {
		plugins, err := l.plugins()
		if err != nil {
			return nil, err
		}
		lost = append(lost, d.find(ctx, l, plugins)...) // now: it may take time, and no ADD waits yet
		for _, p := range plugins {
			all, of = append(all, p), append(of, l)
		}
	}
	open, first := d.shut(name)
	if !first {
		return []string{fmt.Sprintf("network %s: another GC of it is under way", name)}, nil
	}
	defer open()
	valid := validOf(name, kept()) // now: it has each attachment whose ADD has not waited
	ctx, cancel := within(ctx, d.GCTime)
	defer cancel()
	var errs []error
	for i, p := range all {
		err := lost[i]
		if err == nil {
			err = d.gcPlugin(ctx, of[i], p, valid)
		}
		switch {
		case ignorant(err):
			words = append(words, fmt.Sprintf("network %s: plugin %s knows no GC: %v", name, p.name, err))
		case err != nil:
			errs = append(errs, fmt.Errorf("network %s: plugin %s: %w", name, p.name, err))
		}
	}
	return words, errors.Join(errs...)
}

// gcPlugin executes GC of a plugin.
func (d *Delegates) gcPlugin(ctx context.Context, s *Spec, p plugin, valid json.RawMessage) error {
	for _, key := range validKeys {
		p.config[key] = valid
	}
	in, err := s.stdin(p, "GC")
	if err != nil {
		return err
	}
	return invoke.ExecPluginWithoutResult(ctx, p.path, in, &invoke.Args{Command: "GC", Path: s.path()}, d.Exec)
}

// validOf is the list of a network's attachments, in JSON.
func validOf(network string, kept []*Spec) json.RawMessage {
	valid := []types.GCAttachment{}
	for _, s := range kept {
		if s.Network == network {
			valid = append(valid, types.GCAttachment{ContainerID: s.Container, IfName: s.Ifname})
		}
	}
	raw, err := json.Marshal(valid)
	if err != nil {
		panic(err) // texts only
	}
	return raw
}

// ignorant reports whether a plugin's error says that the plugin does not know the verb, or not in this version.
func ignorant(err error) bool {
	var said *types.Error
	return errors.As(err, &said) && (said.Code == types.ErrIncompatibleCNIVersion || said.Code == types.ErrInvalidEnvironmentVariables)
}
