package networks_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/nad"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/networks"
)

// cluster has definitions, by their labels, what its only pod asks for, and that pod's devices.
type cluster struct {
	definitions map[string]string
	resources   map[string]string
	asks, first string
	away        error
	devices     map[string][]string
}

func (c *cluster) Asks(context.Context, *api.Pod) (string, string, error) {
	return c.asks, c.first, c.away
}

func (c *cluster) Definition(_ context.Context, namespace, name string) (*nadv1.NetworkAttachmentDefinition, error) {
	label := namespace + "/" + name
	config, has := c.definitions[label]
	if !has || c.away != nil {
		return nil, c.away
	}
	d := &nadv1.NetworkAttachmentDefinition{Spec: nadv1.NetworkAttachmentDefinitionSpec{Config: config}}
	d.Namespace, d.Name = namespace, name
	if r := c.resources[label]; r != "" {
		d.Annotations = map[string]string{nad.KeyResource: r}
	}
	return d, nil
}

func (c *cluster) WriteStatus(context.Context, *api.Pod, string) error { return nil }
func (c *cluster) Heard() <-chan struct{}                              { return nil }

func (c *cluster) Devices(context.Context, api.Pod) (map[string][]string, error) {
	return c.devices, nil
}

// of is Networks.Of for a configuration's keys and a pod in namespace shop, as texts: LABEL=IFNAME MODE PLUGINS.
func of(t *testing.T, c *cluster, keys string, has func(label, ifname string) bool) ([]string, []networks.Network, error) {
	t.Helper()
	conf, bad := netconf.Parse([]byte(`{"cniVersion":"1.0.0","name":"net","type":"berth-cni"` + keys + `}`))
	if bad != nil {
		return nil, nil, bad
	}
	n := &networks.Networks{}
	if c != nil {
		n.Cluster, n.Devices = c, c
	}
	all, err := n.Of(t.Context(), conf, networks.Pod{Pod: &api.Pod{Namespace: "shop", Name: "web"}, Ifname: "eth0", Args: "A=b", Has: has})
	var texts []string
	for _, one := range all {
		text := one.Label + "=" + one.Ifname
		if one.Conf != nil {
			text += " " + one.Conf.Mode
			if one.Conf.List != nil {
				text += fmt.Sprintf(" %s", one.Conf.List.Plugins)
			}
		}
		texts = append(texts, text)
	}
	return texts, all, err
}

func TestOf(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"10-filed.conflist": `{"cniVersion":"1.0.0","name":"filed","plugins":[{"type":"p1"},{"type":"p2"}]}`, "20-in-file.conf": `{"cniVersion":"1.0.0","name":"in-file","type":"p3"}`,
	} {
		nettest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	c := func(asks, first string) *cluster {
		return &cluster{asks: asks, first: first, definitions: map[string]string{
			"shop/a": `{"type":"pa","capabilities":{"mac":true}}`, "shop/own": `{"type":"berth-cni","mtu":1400}`, "shop/in-file": "", "default/g": `{"type":"pg"}`,
			"other/o": `{"type":"po"}`, "kube-system/base": `{"name":"base-net","type":"pb","capabilities":{"portMappings":true}}`, "shop/dev": `{"type":"pd"}`,
		}, resources: map[string]string{"shop/dev": "v/r"}, devices: map[string][]string{"v/r": {"d1", "d2"}}}
	}
	ports := `,"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80}]}`
	const withPorts = `"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80}]}`
	confDir := fmt.Sprintf(`,"confDir":%q`, dir)
	for _, test := range []struct {
		about string
		c     *cluster
		keys  string
		want  []string
	}{
		{"nothing is asked for", c("", ""), "", []string{"net=eth0 routed"}},
		{"no cluster", nil, "", []string{"net=eth0 routed"}},
		{"the pod asks", c("a, own@web", ""), "", []string{"net=eth0 routed", `shop/a=net1 delegated [{"type":"pa","capabilities":{"mac":true}}]`, "shop/own=web routed"}},
		{"delegates", nil, `,"delegates":[{"name":"x","type":"px","capabilities":{"portMappings":true}},{"name":"y","plugins":[{"type":"p1","capabilities":{"portMappings":true}}]}]` + ports, []string{
			`x=eth0 delegated [{"name":"x","type":"px","capabilities":{"portMappings":true},` + withPorts + `}]`, `y=net1 delegated [{"type":"p1","capabilities":{"portMappings":true}}]`}},
		{"Berth's own as a delegate", nil, `,"delegates":[{"name":"x","type":"berth-cni","pool":"blue"}]`, []string{"x=eth0 routed"}},
		{"a definition is the cluster's network", c("a", ""), `,"clusterNetwork":"base"` + ports, []string{
			`kube-system/base=eth0 delegated [{"name":"base-net","type":"pb","capabilities":{"portMappings":true},` + withPorts + `}]`, `shop/a=net1 delegated [{"type":"pa","capabilities":{"mac":true}}]`}},
		{"a file is the cluster's network", c("", ""), `,"clusterNetwork":"filed"` + confDir, []string{`filed=eth0 delegated [{"type":"p1"} {"type":"p2"}]`}},
		{"a path is the cluster's network", nil, `,"clusterNetwork":"` + dir + `/20-in-file.conf"`, []string{`in-file=eth0 delegated [{"cniVersion":"1.0.0","name":"in-file","type":"p3"}]`}},
		{"a folder is the cluster's network", nil, `,"clusterNetwork":"` + dir + `"`, []string{`filed=eth0 delegated [{"type":"p1"} {"type":"p2"}]`}},
		{"default networks", c("a", ""), `,"defaultNetworks":["base","filed"]` + confDir, []string{
			"net=eth0 routed", `kube-system/base=net1 delegated [{"name":"base-net","type":"pb","capabilities":{"portMappings":true}}]`, `filed=net2 delegated [{"type":"p1"} {"type":"p2"}]`, `shop/a=net3 delegated [{"type":"pa","capabilities":{"mac":true}}]`}},
		{"a system namespace", c("", ""), `,"defaultNetworks":["base"],"systemNamespaces":["shop"]`, []string{"net=eth0 routed"}},
		{"a definition without a configuration", c("in-file", ""), confDir, []string{"net=eth0 routed", `shop/in-file=net1 delegated [{"cniVersion":"1.0.0","name":"in-file","type":"p3"}]`}},
		{"another first network", c("", "base"), "", []string{`kube-system/base=eth0 delegated [{"name":"base-net","type":"pb","capabilities":{"portMappings":true}}]`}},
		{"isolation", c("a,default/g", ""), `,"namespaceIsolation":true`, []string{"net=eth0 routed", `shop/a=net1 delegated [{"type":"pa","capabilities":{"mac":true}}]`, `default/g=net2 delegated [{"type":"pg"}]`}},
		{"isolation with a global namespace", c("other/o", ""), `,"namespaceIsolation":true,"globalNamespaces":"x, other"`, []string{"net=eth0 routed", `other/o=net1 delegated [{"type":"po"}]`}},
		{"devices", c("dev,dev", ""), "", []string{"net=eth0 routed", `shop/dev=net1 delegated [{"type":"pd","deviceID":"d1","pciBusID":"d1"}]`, `shop/dev=net2 delegated [{"type":"pd","deviceID":"d2","pciBusID":"d2"}]`}},
	} {
		have, _, err := of(t, test.c, test.keys, nil)
		if err != nil || !slices.Equal(have, test.want) {
			t.Errorf("%s: %v\n%s\nwant\n%s", test.about, err, strings.Join(have, "\n"), strings.Join(test.want, "\n"))
		}
	}
	_, all, err := of(t, c("a", ""), `,"binDir":"/opt/other"`, nil)
	nettest.Must(t, err)
	if l := all[1].Conf.List; l.Args != "A=b" || !slices.Equal(l.Folders, []string{"/opt/other"}) {
		t.Errorf("a plugin gets %+v", l)
	}
	asked := c(`[{"name":"dev"},{"name":"named","deviceID":"d9"},{"name":"a"}]`, "")
	asked.definitions["shop/named"] = `{"type":"pn","capabilities":{"deviceID":true}}`
	_, all, err = of(t, asked, "", nil)
	nettest.Must(t, err)
	for i, want := range []string{"d1 of v/r", "d9 of ", " of "} {
		if l := all[i+1].Conf.List; l.Device+" of "+l.Resource != want {
			t.Errorf("%s has device %q of %q, want %s", all[i+1], l.Device, l.Resource, want)
		}
	}
	_, all, err = of(t, c(`[{"name":"a","default-route":["10.1.1.1"]},{"name":"own","default-route":["fe80::1"]}]`, ""), "", nil)
	nettest.Must(t, err)
	if got := fmt.Sprint(all[0].Conf.Gateways, all[1].Conf.Gateways, all[2].Conf.Gateways); got != "[] [10.1.1.1] [fe80::1]" {
		t.Errorf("default routes lead by %s", got)
	}
	// A running pod's networks are not asked for: a, which it has, has no definition any more.
	has := func(label, ifname string) bool { return label == "shop/gone" && ifname == "net1" }
	if have, _, err := of(t, c("gone,own", ""), `,"clusterNetwork":"none"`, has); err != nil || !slices.Equal(have, []string{"net=eth0 delegated", "shop/gone=net1", "shop/own=net2 routed"}) {
		t.Errorf("a running pod: %q, %v", have, err)
	}
	// So it is with those that each pod has, by a definition or a file, both of which are gone.
	has = func(label, ifname string) bool {
		return label == "kube-system/was" && ifname == "net1" || label == "filed-once" && ifname == "net2"
	}
	if have, _, err := of(t, c("own", ""), `,"defaultNetworks":["was","filed-once"]`+confDir, has); err != nil || !slices.Equal(have, []string{"net=eth0 routed", "kube-system/was=net1", "filed-once=net2", "shop/own=net3 routed"}) {
		t.Errorf("a running pod with default networks: %q, %v", have, err)
	}
	for _, test := range []struct {
		c    *cluster
		keys string
		code uint
		says string
	}{
		{c("none", ""), "", 11, "shop/none"},
		{c("other/o", ""), `,"namespaceIsolation":true`, 7, "namespaceIsolation"},
		{c("dev,dev,dev", ""), "", 7, "the pod has 2"},
		{&cluster{away: errors.New("away")}, "", 11, "away"},
		{c("", ""), `,"clusterNetwork":"nowhere"` + confDir, 7, "nowhere"},
		{c("", ""), `,"clusterNetwork":"/nowhere"`, 5, "/nowhere"},
		{c("", "a,b"), "", 7, "default network"},
		{c(`[{"name":"a","default-route":[]}]`, ""), "", 7, "default-route is an empty list"},
		{c(`[{"name":"a","default-route":["10.1.1.1"]}]`, `[{"name":"base","default-route":["10.2.2.1"]}]`), "", 7, "network kube-system/base as eth0 and network shop/a as net1 both have default-route"},
		{nil, `,"delegates":[{"name":"x","type":"berth-cni","delegates":[]}]`, 2, "delegates"},
		{nil, `,"delegates":[{"name":"x","type":"a/b"}]`, 7, "type"},
		{nil, `,"delegates":[{"name":"x","type":"multus"}]`, 7, "multus"},
		{nil, `,"delegates":[{"name":"x","plugins":[{"type":"berth-cni"},{"type":"tuning"}]}]`, 7, "plugin 1 is berth-cni"},
		{nil, `,"delegates":[]`, 7, "delegates"},
		{nil, `,"delegates":[{"name":"x","type":"p"}],"pool":"blue"`, 2, "pool"},
		{nil, `,"delegates":[{"name":"x","type":"p"}],"clusterNetwork":"y"`, 7, "either clusterNetwork or delegates"},
		{nil, `,"delegate":[]`, 2, `perhaps "delegates" is meant`},
		{nil, `,"mode":"delegated"`, 7, "mode"},
		{nil, `,"readinessindicatorfile":"/nowhere"`, 11, "readinessindicatorfile"},
		{nil, `,"binDir":"bin"`, 7, "absolute path"},
		{nil, `,"multusNamespace":"A"`, 7, "multusNamespace"},
		{nil, `,"systemNamespaces":["A"]`, 7, "systemNamespaces"},
		{nil, `,"globalNamespaces":"A"`, 7, "globalNamespaces"},
		{nil, `,"namespaceIsolation":"yes"`, 7, "true or false"},
		{nil, `,"defaultNetworks":["a/b/c"]`, 7, "defaultNetworks"},
	} {
		_, _, err := of(t, test.c, test.keys, nil)
		var e *api.Error
		if !errors.As(err, &e) || e.Code != test.code || !strings.Contains(e.Error(), test.says) {
			t.Errorf("%s: %v, want code %d with %q", test.keys, err, test.code, test.says)
		}
	}
	if _, _, err := of(t, nil, `,"kubeconfig":"/x","cniDir":"/y","logLevel":"debug","logFile":"/z","logToStderr":true,"logOptions":{}`, nil); err != nil {
		t.Errorf("keys that say nothing to Berth: %v", err)
	}
}

// Common has what the configuration gives to each pod, whatever a pod asks for and whichever devices it has.
func TestCommon(t *testing.T) {
	c := &cluster{asks: "a", first: "a", resources: map[string]string{"kube-system/dev": "v/r"}, definitions: map[string]string{
		"shop/a": `{"type":"pa"}`, "kube-system/base": `{"cniVersion":"1.1.0","type":"pb","capabilities":{"mac":true}}`, "kube-system/dev": `{"cniVersion":"1.1.0","type":"pd"}`,
	}}
	common := func(keys string) (texts []string, err error) {
		conf, bad := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"net","type":"berth-cni"` + keys + `}`))
		if bad != nil {
			return nil, bad
		}
		all, err := (&networks.Networks{Cluster: c, Devices: c}).Common(t.Context(), conf)
		for _, n := range all {
			text := n.String() + " " + n.Conf.Mode
			if n.Conf.List != nil {
				text += fmt.Sprintf(" %s", n.Conf.List.Plugins)
			}
			texts = append(texts, text)
		}
		return texts, err
	}
	for keys, want := range map[string][]string{
		``: {"network net as eth0 routed"},
		`,"clusterNetwork":"base","defaultNetworks":["dev"],"runtimeConfig":{"mac":"02:00:00:00:00:01"}`: {
			`network kube-system/base as eth0 delegated [{"cniVersion":"1.1.0","type":"pb","capabilities":{"mac":true},"runtimeConfig":{"mac":"02:00:00:00:00:01"}}]`,
			`network kube-system/dev as net1 delegated [{"cniVersion":"1.1.0","type":"pd"}]`,
		},
		`,"delegates":[{"name":"one","type":"p1"},{"name":"two","type":"p2"}]`: {
			`network one as eth0 delegated [{"name":"one","type":"p1"}]`, `network two as net1 delegated [{"name":"two","type":"p2"}]`,
		},
	} {
		if got, err := common(keys); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s:\n got %q, %v\nwant %q", keys, got, err, want)
		}
	}
	for keys, want := range map[string]string{
		`,"readinessindicatorfile":"/none"`:       "the default network is not ready",
		`,"confDir":"/none","clusterNetwork":"x"`: "no configuration of the network is found",
	} {
		if _, err := common(keys); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", keys, err, want)
		}
	}
}
