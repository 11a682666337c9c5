package nad_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/internal/nad"
)

func definition(config string, annotations ...string) *nadv1.NetworkAttachmentDefinition {
	def := &nadv1.NetworkAttachmentDefinition{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a-net"}, Spec: nadv1.NetworkAttachmentDefinitionSpec{Config: config},
	}
	for i := 0; i < len(annotations); i += 2 {
		def.Annotations = map[string]string{annotations[i]: annotations[i+1]}
	}
	return def
}

func plugin(kind, config string, capabilities ...string) nad.Plugin {
	return nad.Plugin{Type: kind, Capabilities: capabilities, Config: json.RawMessage(config)}
}

func TestParseDefinition(t *testing.T) {
	single := func(version, name, kind, config string, capabilities ...string) nad.Network {
		return nad.Network{Definition: "ns/a-net", Name: name, Version: version, Plugins: []nad.Plugin{plugin(kind, config, capabilities...)}}
	}
	listed := func(change func(*nad.Network)) nad.Network {
		n := nad.Network{Definition: "ns/a-net", Name: "n", Version: "1.0.0", Plugins: []nad.Plugin{plugin("x", `{"type":"x"}`)}}
		change(&n)
		return n
	}
	version := func(v string) nad.Network { return listed(func(n *nad.Network) { n.Version = v }) }
	for config, want := range map[string]nad.Network{
		`{"type":"macvlan"}`: single("0.1.0", "a-net", "macvlan", `{"type":"macvlan"}`),
		`{"cniVersion":"0.3.0","name":"","type":"awesome-plugin"}`:                                            single("0.3.0", "a-net", "awesome-plugin", `{"cniVersion":"0.3.0","name":"","type":"awesome-plugin"}`),
		`{"cniVersion":"","name":null,"type":"x","plugins":null}`:                                             single("0.1.0", "a-net", "x", `{"cniVersion":"","name":null,"type":"x","plugins":null}`),
		`{"type":"x","name":"other.Net_1"}`:                                                                   single("0.1.0", "other.Net_1", "x", `{"type":"x","name":"other.Net_1"}`),
		`{"type":"x","ipam":{"type":"host-local"}}`:                                                           single("0.1.0", "a-net", "x", `{"type":"x","ipam":{"type":"host-local"}}`),
		`{"type":"x","ipam":{"type":""},"delegate":{"mtu":1}}`:                                                single("0.1.0", "a-net", "x", `{"type":"x","ipam":{"type":""},"delegate":{"mtu":1}}`),
		`{"type":"x","ipam":[1],"disableCheck":5}`:                                                            single("0.1.0", "a-net", "x", `{"type":"x","ipam":[1],"disableCheck":5}`),
		`{"type":"berth-cni","mode":"routed"}`:                                                                single("0.1.0", "a-net", "berth-cni", `{"type":"berth-cni","mode":"routed"}`),
		`{"type":"x","capabilities":{"mac":true,"ips":true,"x":false}}`:                                       single("0.1.0", "a-net", "x", `{"type":"x","capabilities":{"mac":true,"ips":true,"x":false}}`, "ips", "mac"),
		`{"cniVersion":"1.0.0","cniVersions":["1.1.0"],"type":"x"}`:                                           single("1.0.0", "a-net", "x", `{"cniVersion":"1.0.0","cniVersions":["1.1.0"],"type":"x"}`),
		`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"x"}]}`:                                          listed(func(*nad.Network) {}),
		`{"name":"n","cniVersions":["0.4.0","1.0.0"],"plugins":[{"type":"x"}]}`:                               version("1.0.0"),
		`{"name":"n","cniVersion":"1.1.0","cniVersions":["0.4.0"],"plugins":[{"type":"x"}]}`:                  version("1.1.0"),
		`{"name":"n","cniVersion":"2.0.0","cniVersions":["0.4.0","3.0.0"],"plugins":[{"type":"x"}]}`:          version("0.4.0"),
		`{"name":"n","plugins":[{"type":"x"}]}`:                                                               version("0.1.0"),
		`{"cniVersion":"1.0.0","name":"n","disableCheck":true,"disableGC":"True","plugins":[{"type":"x"}]}`:   listed(func(n *nad.Network) { n.DisableCheck, n.DisableGC = true, true }),
		`{"cniVersion":"1.0.0","name":"n","disableCheck":false,"disableGC":"false","plugins":[{"type":"x"}]}`: listed(func(*nad.Network) {}),
		`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"x"},{"type":"tuning","capabilities":{"mac":true}}]}`: listed(func(n *nad.Network) {
			n.Plugins = append(n.Plugins, plugin("tuning", `{"type":"tuning","capabilities":{"mac":true}}`, "mac"))
		}),
	} {
		if got, e := nad.ParseDefinition(definition(config)); e != nil {
			t.Errorf("%s: %v", config, e)
		} else if !reflect.DeepEqual(*got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", config, *got, want)
		}
	}
	for _, config := range []string{"", " \n"} {
		got, e := nad.ParseDefinition(definition(config, nad.KeyResource, "intel.com/sriov"))
		if want := (nad.Network{Definition: "ns/a-net", Resource: "intel.com/sriov"}); e != nad.ErrInFile || !reflect.DeepEqual(*got, want) {
			t.Errorf("%q: %+v, %v", config, got, e)
		}
	}
	if n, e := nad.ParseDefinition(definition(`{"type":"x"}`, nad.KeyResource, "intel.com/sriov")); e != nil || n.Resource != "intel.com/sriov" || n.Label() != "ns/a-net" {
		t.Errorf("%+v, %v", n, e)
	}
	if n, e := nad.ParseConfig([]byte(`{"type":"x","name":"cbr0"}`), ""); e != nil || n.Label() != "cbr0" {
		t.Errorf("%+v, %v", n, e)
	}
}

func TestParseDefinitionRefuses(t *testing.T) {
	plugins := func(plugins string) string { return `{"name":"n","plugins":` + plugins + `}` }
	for _, c := range []struct {
		config string
		code   uint
		want   string // in the details
	}{
		{`{`, 6, "at byte 1"},
		{`[]`, 6, "expected an object"},
		{`{"type":"x"} {}`, 6, "expected nothing more"},
		{`{"type":"x","type":"y"}`, 6, `key "type" appears twice`},
		{`{}`, 7, "type is missing; expected the plugin's file name; or plugins"},
		{`{"type":null,"plugins":null}`, 7, "type is missing"},
		{`{"type":"x","plugins":[{"type":"y"}]}`, 2, `"plugins": [{"type":"y"}]; a configuration has either type or plugins`},
		{`{"type":""}`, 7, `type is ""; expected a plugin's file name, without a path`},
		{`{"type":5}`, 7, `type is 5; expected`},
		{`{"type":"../x"}`, 7, `type is "../x"; expected a plugin's file name, without a path`},
		{`{"type":"/bin/sh"}`, 7, `type is "/bin/sh"`},
		{`{"type":".."}`, 7, `type is ".."`},
		{`{"type":"x\u0000"}`, 7, `type is`},
		{`{"type":"multus"}`, 7, `type is "multus"; expected a plugin that attaches a pod`},
		{`{"type":"multus-shim"}`, 7, `type is "multus-shim"`},
		{`{"type":"berth-cni","delegates":[]}`, 2, `"delegates": []; a network that delegates`},
		{`{"type":"berth-cni","clusterNetwork":"x"}`, 2, `"clusterNetwork": "x"`},
		{`{"type":"flannel","delegate":{"type":"multus"}}`, 7, `delegate.type is "multus"`},
		{`{"type":"flannel","delegate":{"type":"berth-cni","delegates":[]}}`, 2, `"delegate.delegates": []`},
		{`{"type":"x","ipam":{"type":"../../bin/sh"}}`, 7, `ipam.type is "../../bin/sh"`},
		{`{"type":"x","name":"a/b"}`, 7, `name is "a/b"; expected 1 to 128 letters`},
		{`{"type":"x","name":5}`, 7, `name is 5; expected a string`},
		{`{"type":"x","cniVersion":"2.0.0"}`, 1, `"2.0.0"; supported are 0.1.0`},
		{`{"type":"x","cniVersion":1}`, 7, `cniVersion is 1; expected a string`},
		{`{"type":"x","capabilities":["ips"]}`, 7, `capabilities is ["ips"]; expected an object`},
		{`{"type":"x","capabilities":{"ips":"yes"}}`, 7, `capabilities.ips is "yes"; expected true or false`},
		{plugins(`[]`), 7, `plugins is []; expected a list of 1 to 32`},
		{plugins(`{}`), 7, `plugins is {}; expected a list`},
		{plugins(`[` + strings.Repeat(`{"type":"x"},`, 32) + `{"type":"x"}]`), 7, `expected a list of 1 to 32`},
		{plugins(`[null]`), 7, `plugins[0] is null; expected an object`},
		{plugins(`[{"type":"x"},{}]`), 7, `plugins[1].type is missing`},
		{plugins(`[{"type":"x"},{"type":"a/b"}]`), 7, `plugins[1].type is "a/b"`},
		{plugins(`[{"type":"x"},{"type":"multus"}]`), 7, `plugins[1].type is "multus"`},
		{plugins(`[{"type":"berth-cni","delegates":[]}]`), 2, `"plugins[0].delegates": []`},
		{plugins(`[{"type":"x","capabilities":5}]`), 7, `plugins[0].capabilities is 5`},
		{`{"name":"n","cniVersions":["2.0.0"],"plugins":[{"type":"x"}]}`, 1, "supported are 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0 and 1.1.0"},
		{`{"name":"n","cniVersions":["new"],"plugins":[{"type":"x"}]}`, 7, `cniVersions is "new"`},
		{`{"name":"n","cniVersions":[1],"plugins":[{"type":"x"}]}`, 7, `cniVersions is 1`},
		{`{"name":"n","cniVersions":"1.0.0","plugins":[{"type":"x"}]}`, 7, `cniVersions is "1.0.0"`},
		{`{"name":"n","cniVersion":1,"cniVersions":["1.0.0"],"plugins":[{"type":"x"}]}`, 7, `cniVersion is 1`},
		{`{"name":"n","disableCheck":"maybe","plugins":[{"type":"x"}]}`, 7, `disableCheck is "maybe"; expected true or false`},
		{`{"name":"n","disableGC":1,"plugins":[{"type":"x"}]}`, 7, `disableGC is 1`},
		{`{"type":"x","k":"` + strings.Repeat("v", 64<<10) + `"}`, 7, "expected at most 65536"},
	} {
		got, e := nad.ParseDefinition(definition(c.config))
		if e == nil {
			t.Errorf("%.100s: accepted as %+v", c.config, got)
		} else if e.Code != c.code || !strings.Contains(e.Details, c.want) || e.Msg != "invalid network attachment definition ns/a-net" || got != nil {
			t.Errorf("%.100s: code %d, %v; want %d, %s", c.config, e.Code, e, c.code, c.want)
		}
	}
	for key, def := range map[string]*nadv1.NetworkAttachmentDefinition{
		"name":          {ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "../a"}},
		"namespace":     {ObjectMeta: metav1.ObjectMeta{Namespace: "", Name: "a"}},
		nad.KeyResource: definition(`{"type":"x"}`, nad.KeyResource, "a b"),
	} {
		if got, e := nad.ParseDefinition(def); e == nil || !strings.HasPrefix(e.Details, key+" is ") {
			t.Errorf("%s: %+v, %v", key, got, e)
		}
	}
	// A definition's name may be longer than a network's, which then needs a name of its own.
	long := definition(`{"type":"x"}`)
	long.Name = strings.Repeat("a", 129)
	if _, e := nad.ParseDefinition(long); e == nil || !strings.Contains(e.Details, "expected 1 to 128 letters") {
		t.Errorf("%v", e)
	}
}
