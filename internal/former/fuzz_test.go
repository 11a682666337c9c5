package former_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/former"
)

// Whatever configuration libcni attaches a container by: Read returns what the plugins had, or a problem.
func FuzzAsLibcni(f *testing.F) {
	for _, s := range []string{
		`{"name":"n","plugins":[{"type":"x","capabilities":{"ips":true}},{"type":"y","runtimeConfig":{"a":1},"prevResult":5}]}`,
		`{"cniVersion":"1.0.0","cniVersions":["0.4.0","9.0.0"],"name":"n","disableCheck":"TRUE","plugins":[{"type":"x","ipam":{},"k":1e400}]}`,
		`{"name":"n","type":"","plugins":[{"type":"x","Type":"y","capabilities":null,"CAPABILITIES":{"ips":true}}]}`,
		"{\"name\":\"n\",\"plugins\":[{\"type\":\"x\",\"k\":\"\xff\",\"k\":12345678901234567890}]}",
		`{"name":"n","plugins":[{"type":"multus"},{"type":"x","name":""}]}`,
	} {
		f.Add(s, "ips", "10.0.0.1")
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, config, capability, value string) {
		list, err := libcni.NetworkConfFromBytes([]byte(config))
		if err != nil {
			return
		}
		n := node{t, dir}
		p := &plugins{result: result}
		_, err = n.libcni("var/lib/cni", p).AddNetworkList(t.Context(), list, &libcni.RuntimeConf{
			ContainerID: "c", NetNS: "/n", IfName: "eth0", CapabilityArgs: map[string]any{capability: value},
		})
		if err != nil || len(p.runs) == 0 {
			return
		}
		all, problems := n.read()
		n.remove("var/lib/cni/results/*")
		if len(all)+len(problems) == 0 {
			t.Errorf("%q is lost", config)
		}
		for _, a := range all {
			runs := p.runs
			if len(problems) > 0 { // Multus, whose own part of the list is not released
				runs = slices.DeleteFunc(slices.Clone(runs), func(r run) bool { return strings.HasPrefix(r.plugin, "multus") })
			}
			for i, r := range runs {
				if config, _, _ := had(t, r.stdin); i >= len(a.Plugins) || compact(t, a.Plugins[i]) != config {
					t.Errorf("plugin %d had %s: %s", i, config, a.Plugins)
				}
			}
		}
	})
}

// Whatever the files have: each of them is in an attachment or a problem, and each attachment has names and plugins that can be
// executed and shown.
func FuzzRead(f *testing.F) {
	multus := conf(`{"name":"n","type":"multus","capabilities":{"ips":true},"cniDir":"/elsewhere"}`)
	for _, s := range [][3]string{
		{file(), "", scratchOf(`{"name":"n","type":"x"}`)}, {multus, file(), scratchOf(`{"name":"n","type":"x"}`, `{"name":"m","plugins":[{"type":"y"}]}`)},
		{with("cniArgs", podArgs), with("netns", ""), `[{"CNINetworkConfigList":{"Name":"n","Plugins":[{"Bytes":"eyJ0eXBlIjoieCJ9"}]},"ifnameRequest":"net9","ipRequest":["x"]}]`},
		{with("capabilityArgs", map[string]any{"ips": []int{1}}), conf(`{"name":"n","cniVersions":["1.1.0"],"plugins":[{"type":"x","capabilities":{"ips":true}}]}`), "[null]"},
		{with("result", raw(`{"interfaces":[{"sandbox":"/a"},{"sandbox":"/b"}]}`)), "{}", "{"},
	} {
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, runtime, delegate, scratch string) {
		all, problems := former.ReadTexts(runtime, delegate, scratch)
		known := files(all, problems)
		for _, path := range []string{former.RuntimePath, former.DelegatePath, former.ScratchPath} {
			if !known[path] {
				t.Errorf("%s is lost: %v, %v", path, all, problems)
			}
		}
		for _, a := range all {
			if cni.CheckContainerID(a.Container) != nil || cni.CheckIfname(a.Ifname) != nil || cni.CheckNetworkName(a.Network) != nil || cni.CheckVersion("ADD", a.Version) != nil {
				t.Errorf("%+v", a)
			}
			if len(a.Plugins) == 0 || !cni.IsShowable(a.String(), 4000) || (a.Result == nil) != (a.NoResult != "") || a.Result != nil && !json.Valid(a.Result) {
				t.Errorf("%+v", a)
			}
			for i, kind := range a.Types() {
				if kind == "" || kind == ".." || strings.ContainsAny(kind, "/\x00") || !json.Valid(a.Plugins[i]) {
					t.Errorf("plugin %q: %s", kind, a.Plugins[i])
				}
			}
		}
		for _, p := range problems {
			if p.Reason == "" || len(p.Reason) > 5000 || !cni.IsShowable(p.String(), 6000) {
				t.Errorf("%q", p)
			}
		}
		if again, problems2 := former.ReadTexts(runtime, delegate, scratch); !reflect.DeepEqual(again, all) || !reflect.DeepEqual(problems2, problems) {
			t.Errorf("first %v, %v, then %v, %v", all, problems, again, problems2)
		}
	})
}
