package delegate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"
)

// plugin is a plugin of a list.
type plugin struct {
	name   string // its type
	path   string // of its program
	config map[string]json.RawMessage
}

// plugins reads the plugins of a list.
func (s *Spec) plugins() ([]plugin, error) {
	all := make([]plugin, len(s.Plugins))
	for i, raw := range s.Plugins {
		p := &all[i]
		if err := json.Unmarshal([]byte(raw), &p.config); err != nil {
			return nil, fmt.Errorf("plugin %d of network %s: decoding its configuration: %w", i+1, s.Network, err)
		}
		if s.Type != "" {
			p.name = s.Type
		} else if err := json.Unmarshal(p.config["type"], &p.name); err != nil || p.name == "" {
			return nil, fmt.Errorf("plugin %d of network %s has no type", i+1, s.Network)
		}
	}
	return all, nil
}

// Finder is an invoke.Exec whose look for a plugin's program ends with a context: invoke.Exec's own takes none.
type Finder interface {
	FindUntil(ctx context.Context, plugin string, folders []string) (path string, err error)
}

// find looks for the programs of plugins. For those that it does not find it returns an error each.
func (d *Delegates) find(ctx context.Context, s *Spec, all []plugin) (errs []error) {
	look := func(_ context.Context, plugin string, folders []string) (string, error) {
		return d.Exec.FindInPath(plugin, folders)
	}
	if f, ok := d.Exec.(Finder); ok {
		look = f.FindUntil
	}
	errs = make([]error, len(all))
	for i := range all {
		all[i].path, errs[i] = look(ctx, all[i].name, s.Folders)
		if errs[i] != nil {
			errs[i] = fmt.Errorf("plugin %s: %w", all[i].name, errs[i])
		}
	}
	return errs
}

// aim is find for plugins that need not be there. It asks for the programs only if there are several folders to look in: who executes a
// plugin looks for it once more, and says that it is not there.
func (d *Delegates) aim(ctx context.Context, s *Spec, all []plugin) (errs []error) {
	if len(s.Folders) != 1 {
		return d.find(ctx, s, all)
	}
	for i := range all {
		all[i].path = filepath.Join(s.Folders[0], all[i].name)
	}
	return make([]error, len(all))
}

// stdin returns what a plugin reads: its configuration with name and version of the list, and with the result so far, if there is one
// and the version has prevResult for this verb (CNI 0.3.0 for ADD, and 0.4.0 for others).
func (s *Spec) stdin(p plugin, verb string) ([]byte, error) {
	config := map[string]any{}
	for key, value := range p.config {
		config[key] = value
	}
	config["name"], config["cniVersion"] = s.Network, s.Version
	delete(config, "prevResult")
	if verb == "ADD" || s.since("0.4.0") {
		if s.Result != "" {
			config["prevResult"] = json.RawMessage(s.Result)
		}
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encoding its configuration: %w", err)
	}
	return raw, nil
}

// since reports whether the list's version is at least another one.
func (s *Spec) since(least string) bool {
	ok, err := version.GreaterThanOrEqualTo(s.Version, least)
	return err == nil && ok
}

// args are the environment of a plugin. netns is "" if the pod's network namespace is gone.
func (s *Spec) args(verb, netns string) *invoke.Args {
	return &invoke.Args{Command: verb, ContainerID: s.Container, NetNS: netns, IfName: s.Ifname, PluginArgsStr: s.Args, Path: s.path()}
}

// add executes ADD of all plugins in their order, and writes down the result of each.
func (d *Delegates) add(ctx context.Context, s *Spec, all []plugin) error {
	for _, p := range all {
		in, err := s.stdin(p, "ADD")
		if err == nil {
			var result string
			if result, err = d.result(ctx, s, p, in); err == nil {
				s.Result = result
			}
		}
		if err != nil {
			return fmt.Errorf("plugin %s: %w", p.name, err)
		}
	}
	s.Done = true
	return nil
}

// result executes ADD of a plugin, and returns what it answers, in the list's version.
func (d *Delegates) result(ctx context.Context, s *Spec, p plugin, in []byte) (string, error) {
	r, err := invoke.ExecPluginWithResult(ctx, p.path, in, s.args("ADD", s.Netns.Path), d.Exec)
	if err != nil {
		return "", err
	}
	if r, err = r.GetAsVersion(s.Version); err != nil {
		return "", fmt.Errorf("converting its result to version %s: %w", s.Version, err)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encoding its result: %w", err)
	}
	if len(raw) > MaxResult {
		return "", fmt.Errorf("its result has %d bytes; expected at most %d", len(raw), MaxResult)
	}
	return string(raw), nil
}

// del executes DEL of all plugins in reverse, also if some fail, and returns all errors.
func (d *Delegates) del(ctx context.Context, s *Spec, netns string) error {
	all, err := s.plugins()
	if err != nil {
		return err
	}
	lost := d.aim(ctx, s, all)
	var errs []error
	for i, p := range slices.Backward(all) {
		err := lost[i]
		if err == nil {
			err = d.tell(ctx, s, p, "DEL", netns)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// tell executes a verb of a plugin that has no result.
func (d *Delegates) tell(ctx context.Context, s *Spec, p plugin, verb, netns string) error {
	in, err := s.stdin(p, verb)
	if err == nil {
		err = invoke.ExecPluginWithoutResult(ctx, p.path, in, s.args(verb, netns), d.Exec)
	}
	if err != nil {
		return fmt.Errorf("plugin %s: %w", p.name, err)
	}
	return nil
}

// Check executes CHECK of all plugins in their order, with the result of ADD (CNI 1.1, section 4, CHECK). It stops at the first error. Lists
// that want no CHECK, or whose version has none, succeed.
func (d *Delegates) Check(ctx context.Context, s *Spec) error {
	if s.DisableCheck || !s.since("0.4.0") {
		return nil
	}
	all, err := s.plugins()
	if err != nil {
		return err
	}
	if err := errors.Join(d.find(ctx, s, all)...); err != nil {
		return err
	}
	for _, p := range all {
		if err := d.tell(ctx, s, p, "CHECK", s.Netns.Path); err != nil {
			return err
		}
	}
	return nil
}
