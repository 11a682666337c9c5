package nad_test

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-net/berth/internal/nad"
	"github.com/berth-net/berth/internal/nettest"
)

// everything asks for each capability.
const everything = `[{"name":"a","ips":["10.2.2.42/24","2001:db8::5"],"mac":"02-23-45-67-89-AB","infiniband-guid":"c2:11:22:33:44:55:66:77",
	"portMappings":[{"hostPort":80,"containerPort":8080},{"hostPort":53,"containerPort":53,"protocol":"UDP","hostIP":"10.0.0.1"}],
	"bandwidth":{"ingressRate":2048,"ingressBurst":1600},"deviceID":"0000:03:02.1","cni-args":{"k":[1],"a/b":"<x>"}}]`

func selected(t *testing.T, annotation string) *nad.Selection {
	t.Helper()
	all, e := nad.Select(annotation, pod)
	if e != nil {
		t.Fatal(e)
	}
	return &all[0]
}

func network(t *testing.T, config string) *nad.Network {
	t.Helper()
	n, e := nad.ParseDefinition(definition(config))
	if e != nil {
		t.Fatal(e)
	}
	return n
}

func TestConfigure(t *testing.T) {
	const all = `"capabilities":{"ips":true,"mac":true,"portMappings":true,"bandwidth":true,"infinibandGUID":true,"deviceID":true,"CNIDeviceInfoFile":true}`
	const values = `"bandwidth":{"ingressRate":2048,"ingressBurst":1600,"egressRate":0,"egressBurst":0},"deviceID":"0000:03:02.1",` +
		`"infinibandGUID":"c2:11:22:33:44:55:66:77","ips":["10.2.2.42/24","2001:db8::5"],"mac":"02:23:45:67:89:ab",` +
		`"portMappings":[{"hostPort":80,"containerPort":8080,"protocol":"tcp"},{"hostPort":53,"containerPort":53,"protocol":"udp","hostIP":"10.0.0.1"}]`
	const args = `"args":{"cni":{"k":[1],"a/b":"<x>"}}`
	for _, c := range []struct {
		what, config, annotation string
		given                    nad.Given
		want                     []string
	}{
		{"nothing is asked for", `{"type":"x", "capabilities":{"ips":true}}`, `a`, nad.Given{}, []string{`{"type":"x","capabilities":{"ips":true}}`}},
		{"everything", `{"type":"x",` + all + `}`, everything, nad.Given{}, []string{`{"type":"x",` + all + `,` + args + `,"runtimeConfig":{` + values + `}}`}},
		{
			"each plugin gets what it declares, and args", `{"name":"n","plugins":[{"type":"x","capabilities":{"ips":true,"mac":false}},{"type":"y","capabilities":{"mac":true,"ips":true}},{"type":"z"}]}`,
			`[{"name":"a","ips":["10.0.0.1"],"mac":"02:00:00:00:00:01","cni-args":{"k":1}}]`, nad.Given{}, []string{
				`{"type":"x","capabilities":{"ips":true,"mac":false},"args":{"cni":{"k":1}},"runtimeConfig":{"ips":["10.0.0.1"]}}`,
				`{"type":"y","capabilities":{"mac":true,"ips":true},"args":{"cni":{"k":1}},"runtimeConfig":{"ips":["10.0.0.1"],"mac":"02:00:00:00:00:01"}}`,
				`{"type":"z","args":{"cni":{"k":1}}}`,
			},
		},
		{
			"args are merged, and runtimeConfig is replaced", `{"type":"x","args":{"o":1,"cni":{"k":2,"l":3}},"runtimeConfig":{"x":1},"capabilities":{"mac":true}}`,
			`[{"name":"a","mac":"02:00:00:00:00:01","cni-args":{"k":4,"m":5}}]`, nad.Given{},
			[]string{`{"type":"x","args":{"o":1,"cni":{"k":4,"l":3,"m":5}},"runtimeConfig":{"mac":"02:00:00:00:00:01"},"capabilities":{"mac":true}}`},
		},
		{"args are null", `{"type":"x","args":null}`, `[{"name":"a","cni-args":{"k":4}}]`, nad.Given{}, []string{`{"type":"x","args":{"cni":{"k":4}}}`}},
		{
			"a device needs no capability", `{"name":"n","plugins":[{"type":"x"},{"type":"y","deviceID":"z","capabilities":{"deviceID":true}}]}`, `a`, nad.Given{Device: "d/1"},
			[]string{`{"type":"x","deviceID":"d/1","pciBusID":"d/1"}`, `{"type":"y","deviceID":"d/1","capabilities":{"deviceID":true},"pciBusID":"d/1","runtimeConfig":{"deviceID":"d/1"}}`},
		},
		{"the pod asks for the device that it has", `{"type":"x","capabilities":{"deviceID":true}}`, `[{"name":"a","deviceID":"d"}]`, nad.Given{Device: "d"},
			[]string{`{"type":"x","capabilities":{"deviceID":true},"deviceID":"d","pciBusID":"d","runtimeConfig":{"deviceID":"d"}}`}},
		{
			"what is offered goes where it is declared, behind what is asked for", `{"type":"x","capabilities":{"ips":true,"CNIDeviceInfoFile":true}}`, `[{"name":"a","ips":["10.0.0.1"]}]`,
			nad.Given{Offered: map[string]json.RawMessage{"CNIDeviceInfoFile": json.RawMessage(`"/f"`), "ips": json.RawMessage(`["10.0.0.2"]`), "other": json.RawMessage(`1`)}},
			[]string{`{"type":"x","capabilities":{"ips":true,"CNIDeviceInfoFile":true},"runtimeConfig":{"CNIDeviceInfoFile":"/f","ips":["10.0.0.1"]}}`},
		},
	} {
		configs, e := network(t, c.config).Configure(selected(t, c.annotation), c.given)
		if e != nil {
			t.Errorf("%s: %v", c.what, e)
			continue
		}
		if got := texts(configs); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %s\nwant %s", c.what, got, c.want)
		}
	}
}

func texts(configs []json.RawMessage) (all []string) {
	for _, c := range configs {
		all = append(all, string(c))
	}
	return all
}

func TestConfigureRefuses(t *testing.T) {
	for _, c := range []struct {
		what, config, annotation string
		given                    nad.Given
		want                     string
	}{
		{"no plugin declares", `{"type":"x","capabilities":{"ips":false,"mac":true}}`, `[{"name":"a","ips":["10.0.0.1"],"mac":"02:00:00:00:00:01"}]`, nad.Given{},
			`the pod asks for ips, and none of the network's plugins has it; expected a plugin with "capabilities": {"ips": true}`},
		{"several", `{"name":"n","plugins":[{"type":"x"},{"type":"y"}]}`, everything, nad.Given{}, "the pod asks for bandwidth, deviceID, infinibandGUID, ips, mac and portMappings"},
		{"another device", `{"type":"x","capabilities":{"deviceID":true}}`, `[{"name":"a","deviceID":"d"}]`, nad.Given{Device: "e"}, `deviceID is "d"; expected e, which the pod has`},
		{"args are no object", `{"type":"x","args":5}`, `[{"name":"a","cni-args":{"k":4}}]`, nad.Given{}, "plugin 1, x: args is 5; expected an object"},
		{"args.cni is no object", `{"type":"x","args":{"cni":[]}}`, `[{"name":"a","cni-args":{"k":4}}]`, nad.Given{}, "plugin 1, x: args.cni is []; expected an object"},
	} {
		got, e := network(t, c.config).Configure(selected(t, c.annotation), c.given)
		if e == nil || e.Code != 7 || e.Msg != "invalid request to network ns/a-net" || !strings.Contains(e.Details, c.want) || got != nil {
			t.Errorf("%s: %s, %v, want %s", c.what, got, e, c.want)
		}
	}
}

// recorder is a libcni that executes nothing, and keeps what plugins would get on their stdin.
type recorder struct {
	version.PluginDecoder
	stdin []any
}

func (r *recorder) ExecPlugin(_ context.Context, _ string, stdin []byte, _ []string) ([]byte, error) {
	var conf any
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return nil, err
	}
	r.stdin = append(r.stdin, conf)
	return []byte(`{"cniVersion":"1.0.0"}`), nil
}

func (r *recorder) FindInPath(plugin string, _ []string) (string, error) { return plugin, nil }

// Plugins get the same from libcni with Configure's configurations as with libcni's own CapabilityArgs.
func TestConfigureAsLibcni(t *testing.T) {
	const config = `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"x","runtimeConfig":{"o":1},"capabilities":{"ips":true,"mac":true}},` +
		`{"type":"y","capabilities":{"bandwidth":true,"mac":false,"portMappings":true}},{"type":"z","runtimeConfig":{"o":1}},{"type":"u","capabilities":{"infinibandGUID":true,"deviceID":true}}]}`
	s := selected(t, strings.Replace(everything, `,"cni-args":{"k":[1],"a/b":"<x>"}`, "", 1))
	n := network(t, config)
	configs, e := n.Configure(s, nad.Given{})
	if e != nil {
		t.Fatal(e)
	}
	run := func(conf string, args map[string]any) []any {
		r := &recorder{}
		list, err := libcni.NetworkConfFromBytes([]byte(conf))
		nettest.Must(t, err)
		_, err = libcni.NewCNIConfigWithCacheDir(nil, t.TempDir(), r).AddNetworkList(t.Context(), list,
			&libcni.RuntimeConf{ContainerID: "c", NetNS: "/n", IfName: "net1", CapabilityArgs: args})
		nettest.Must(t, err)
		return r.stdin
	}
	ours := run(`{"cniVersion":"1.0.0","name":"n","plugins":[`+strings.Join(texts(configs), ",")+`]}`, nil)
	theirs := run(config, map[string]any{
		"ips": []string{"10.2.2.42/24", "2001:db8::5"}, "mac": "02:23:45:67:89:ab", "infinibandGUID": "c2:11:22:33:44:55:66:77", "deviceID": "0000:03:02.1",
		"bandwidth": map[string]int{"ingressRate": 2048, "ingressBurst": 1600, "egressRate": 0, "egressBurst": 0},
		"portMappings": []map[string]any{
			{"hostPort": 80, "containerPort": 8080, "protocol": "tcp"}, {"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "10.0.0.1"},
		},
	})
	if len(ours) != 4 || !reflect.DeepEqual(ours, theirs) {
		t.Errorf("\nours   %v\ntheirs %v", ours, theirs)
	}
}
