package nad_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/nad"
)

// refused checks a refusal: it has a number, and is short and valid UTF-8.
func refused(t *testing.T, e *api.Error) {
	t.Helper()
	if e.Code == 0 || e.Msg == "" || e.Details == "" || !utf8.ValidString(e.Error()) || len(e.Error()) > 1000 {
		t.Errorf("refused with code %d, %q (%d bytes)", e.Code, e, len(e.Error()))
	}
}

// Whatever an annotation has: each selection that is accepted names a definition, and an interface of its own
// that the kernel accepts; and the selection passes on what is valid JSON.
func FuzzSelect(f *testing.F) {
	for _, s := range []string{
		"a", "ns/a@x, b", "a@net2,b", "[]", "[{}]", everything, `[{"name":"a","default-route":[]},{"name":"b","default-route":["::1"]}]`,
		`[{"name":"a","ips":["10.0.0.1/0","::2/128"],"x.y":{}}]`, `[{"name":"a","ipam-claim-reference":"c"}]`, "a@b@c", "\x00", "[[[[", `[{"name":"a","cni-args":{"":{"":""}}}]`,
	} {
		f.Add(s)
	}
	open := &nad.Network{Name: "n", Plugins: []nad.Plugin{{
		Type: "x", Config: json.RawMessage(`{"type":"x"}`), Capabilities: []string{"bandwidth", "deviceID", "infinibandGUID", "ips", "mac", "portMappings"},
	}}}
	f.Fuzz(func(t *testing.T, annotation string) {
		selections, e := nad.Select(annotation, pod)
		if e != nil {
			refused(t, e)
			return
		}
		seen := map[string]bool{"eth0": true}
		for _, s := range selections {
			if s.Name == "" || s.Namespace == "" || strings.ContainsAny(s.Name+s.Namespace, "/\x00 ") {
				t.Errorf("%q: definition %q of %q", annotation, s.Name, s.Namespace)
			}
			if seen[s.Interface] || cni.CheckNewIfname(s.Interface) != nil {
				t.Errorf("%q: interface %q", annotation, s.Interface)
			}
			seen[s.Interface] = true
			configs, e := open.Configure(&s, nad.Given{})
			if e != nil || len(configs) != 1 || !json.Valid(configs[0]) {
				t.Errorf("%q: %q, %v", annotation, configs, e)
			}
		}
		if len(selections) > nad.MaxNetworks {
			t.Errorf("%d networks", len(selections))
		}
	})
}

// Whatever a definition has: each plugin that is accepted has a type that is a file name, and is not one
// that would read the pod's annotations again.
func FuzzDefinition(f *testing.F) {
	for _, s := range []string{
		"", "{}", `{"type":"x"}`, `{"type":"../x"}`, `{"name":"n","plugins":[{"type":"x","capabilities":{"ips":true}},{"type":"multus"}]}`,
		`{"cniVersions":["1.0.0","9.9.9"],"plugins":[{"type":"x","ipam":{"type":"a/b"}}]}`, `{"type":"x","disableCheck":"TRUE","args":{"cni":[]}}`, "null", `{"plugins":[]}`,
		`{"type":"x","capabilities":{"CNIDeviceInfoFile":true}}`, `{"type":"x","capabilities":{"CNIDeviceInfoFile":true},"runtimeConfig":1}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, config string) {
		n, e := nad.ParseDefinition(definition(config))
		if e == nad.ErrInFile && strings.TrimSpace(config) == "" {
			return
		}
		if e != nil {
			refused(t, e)
			return
		}
		if len(n.Plugins) == 0 || cni.CheckNetworkName(n.Name) != nil || cni.CheckVersion("ADD", n.Version) != nil {
			t.Errorf("%q: %+v", config, n)
		}
		for _, p := range n.Plugins {
			if p.Type == "" || p.Type == "." || p.Type == ".." || strings.ContainsAny(p.Type, "/\x00") || strings.HasPrefix(p.Type, "multus") && len(p.Type) < 8 {
				t.Errorf("%q: type %q", config, p.Type)
			}
		}
		configs, e := n.Configure(&nad.Selection{Args: json.RawMessage(`{"k":1}`)}, nad.Given{Device: "d"})
		if e != nil {
			refused(t, e)
			return
		}
		offered, err := nad.Offer(configs, nad.CapabilityInfoFile, "/f")
		var bad *api.Error
		if err != nil && !errors.As(err, &bad) {
			t.Errorf("%q: refused without a number: %v", config, err)
		}
		for _, c := range append(configs, offered...) {
			var conf struct {
				DeviceID string
				Args     struct{ CNI struct{ K int } }
			}
			if err := json.Unmarshal(c, &conf); err != nil {
				t.Errorf("%q: %q: %v", config, c, err)
			}
		}
		for i, c := range offered {
			var conf struct {
				RuntimeConfig struct{ CNIDeviceInfoFile any }
			}
			if !slices.Contains(n.Plugins[i].Capabilities, nad.CapabilityInfoFile) {
				continue
			}
			if err := json.Unmarshal(c, &conf); err != nil || conf.RuntimeConfig.CNIDeviceInfoFile != "/f" {
				t.Errorf("%q: a plugin is offered %q: %v", config, c, err)
			}
		}
	})
}
