package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/berth-net/berth/deploy"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/misspelt"
)

// confOptions is what people choose in a configuration.
type confOptions struct {
	Pool         string   `json:"pool,omitempty"`
	MTU          int      `json:"mtu,omitempty"`
	Chain        []string `json:"chain,omitempty"` // plugins behind Berth's: a type, or a JSON object
	Capabilities []string `json:"capabilities"`    // nil: all that Berth has; empty: none
}

// The flags of confOptions.
const (
	flagPool         = "pool"
	flagMTU          = "mtu"
	flagChain        = "chain"
	flagCapabilities = "capabilities"
)

func (o *confOptions) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&o.Pool, flagPool, "", "the agent's pool that pods get addresses of; '' goes back to the default (default: the agent's default)")
	fl.IntVar(&o.MTU, flagMTU, 0, "the MTU of pods' interfaces, in bytes (default: the agent's)")
	fl.StringArrayVar(&o.Chain, flagChain, nil, "a plugin behind Berth's: its type, or its configuration in JSON; repeatable, in order; \"\": none")
	fl.StringSliceVar(&o.Capabilities, flagCapabilities, nil, fmt.Sprintf("what the runtime may ask of the plugin, with commas (default: all: %s); \"\": nothing", strings.Join(netconf.Capabilities(), ",")))
}

// with returns the options, changed as flags on the command line say.
func (o confOptions) with(f installFlags) confOptions {
	if f.given(flagPool) {
		o.Pool = f.Pool
	}
	if f.given(flagMTU) {
		o.MTU = f.MTU
	}
	if f.given(flagChain) {
		o.Chain = slices.DeleteFunc(slices.Clone(f.Chain), func(s string) bool { return s == "" })
	}
	if f.given(flagCapabilities) {
		o.Capabilities = append([]string{}, f.Capabilities...)
	}
	return o
}

// options returns the options of the configurations: the flags' values and, for flags that were not
// given, the values with which the first configuration was written.
func (rec *record) options(to targets, f installFlags) confOptions {
	for _, path := range to.confPaths(f.name) {
		if file := rec.file(path); file != nil && file.Options != nil {
			return file.Options.with(f)
		}
	}
	return confOptions{}.with(f)
}

// chain returns the configurations of the chained plugins.
func (o confOptions) chain() (all []map[string]any, err error) {
	for _, text := range o.Chain {
		conf := map[string]any{"type": text}
		if strings.HasPrefix(strings.TrimSpace(text), "{") {
			conf = nil
			if err := json.Unmarshal([]byte(text), &conf); err != nil {
				return nil, usage{fmt.Errorf("--chain: %.200s is no JSON object: %w", text, err)}
			}
		}
		kind, _ := conf["type"].(string)
		if cni.CheckNetworkName(kind) != nil { // a type is a file's name, which may have the characters of a network's name
			return nil, usage{fmt.Errorf("--chain: %.200s has no plugin's type", text)}
		}
		if kind == plugin {
			return nil, usage{fmt.Errorf("--chain: %s is there already", plugin)}
		}
		all = append(all, conf)
	}
	return all, nil
}

// does says which capability of Berth's replaces a reference plugin.
var does = map[string]string{"portmap": "portMappings", "bandwidth": "bandwidth"}

// chained refuses a chain that cannot work: without one of its plugins every ADD fails, and a plugin
// that does what Berth does itself would do it a second time.
func (a *app) chained(o confOptions, to targets, force bool) error {
	chain, err := o.chain()
	if err != nil {
		return err
	}
	for _, conf := range chain {
		kind := conf["type"].(string)
		if c := does[kind]; slices.Contains(o.capabilities(), c) {
			return usage{fmt.Errorf("--chain: Berth does itself what %s is for: leave it out, or leave %s out of --%s", kind, c, flagCapabilities)}
		}
		for _, r := range to {
			if !r.Has(kind) && !force {
				return fmt.Errorf("the chained plugin %s is not in %s, so that every ADD would fail: install it there first, or use --force",
					kind, strings.Join(r.BinDirs.Paths, ", "))
			}
		}
	}
	return nil
}

func (o confOptions) capabilities() []string {
	if o.Capabilities == nil {
		return netconf.Capabilities()
	}
	return o.Capabilities
}

// conflist is deploy.Conflist for the network of this name, the agent of this root, and with
// these options.
func (a *app) conflist(name string, o confOptions) ([]byte, error) {
	chain, err := o.chain()
	if err != nil {
		return nil, err
	}
	var conf map[string]any
	if err := json.Unmarshal(deploy.Conflist, &conf); err != nil {
		return nil, fmt.Errorf("reading the built-in configuration: %w", err)
	}
	conf["name"] = name
	plugins := conf["plugins"].([]any) // a test checks that the file has this form
	own := plugins[0].(map[string]any)
	if a.root != "/" {
		own["root"] = a.root
	}
	if o.Pool != "" {
		own["pool"] = o.Pool
	}
	if o.MTU != 0 {
		own["mtu"] = o.MTU
	}
	if o.Capabilities != nil {
		can := map[string]bool{}
		for _, c := range o.Capabilities {
			if !slices.Contains(netconf.Capabilities(), c) {
				return nil, usage{fmt.Errorf("--%s: Berth has no %q, only %s%s", flagCapabilities, c, strings.Join(netconf.Capabilities(), ", "), misspelt.Meant(c, netconf.Capabilities()))}
			}
			can[c] = true
		}
		own["capabilities"] = can
	}
	if err := readable(conf, own); err != nil {
		return nil, err
	}
	for _, c := range chain {
		plugins = append(plugins, c)
	}
	conf["plugins"] = plugins
	raw, err := json.MarshalIndent(conf, "", "  ")
	if err != nil {
		return nil, err
	}
	if raw = append(raw, '\n'); same(raw, deploy.Conflist) {
		return deploy.Conflist, nil
	}
	return raw, nil
}

// readable returns an error if the plugin would refuse its part of a configuration.
func readable(conf, own map[string]any) error {
	raw, err := json.Marshal(own)
	if err != nil {
		return err
	}
	if _, e := netconf.ParsePart(conf["name"].(string), conf["cniVersion"].(string), raw); e != nil {
		return usage{errors.New(cmp.Or(e.Details, e.Msg))}
	}
	return nil
}

// same reports whether two JSON texts have the same values.
func same(a, b []byte) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	x2, _ := json.Marshal(x)
	y2, _ := json.Marshal(y)
	return bytes.Equal(x2, y2)
}

// difference shows what a file has, and what install would write into it.
func difference(path string, have, want []byte) string {
	return string(diff.Diff(path, have, "berth install", want))
}

// keep writes a copy of a file beside it, under a name that is still free and that runtimes pass
// over, and returns its path.
func (rec *record) keep(path string, content []byte) (string, error) {
	for n := 1; ; n++ {
		backup := path + ".bak"
		if n > 1 {
			backup += fmt.Sprint(n)
		}
		if _, err := os.Lstat(backup); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		_, err := rec.place(backup, content, 0o644)
		return filepath.Clean(backup), err
	}
}
