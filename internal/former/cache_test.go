package former_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/former"
	"github.com/berth-net/berth/internal/nettest"
)

const (
	idA = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	idB = "b"
)

// podArgs are CNI_ARGS as runtimes give them.
var podArgs = [][2]string{
	{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "web"}, {"K8S_POD_INFRA_CONTAINER_ID", idA}, {"K8S_POD_UID", "9c1f"},
}

type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Note          string `json:"note"`
	Big           uint64 `json:"big"`
}

var capabilities = map[string]any{
	"portMappings": []portMapping{{8080, 80, `<"&`, 1<<63 + 1}}, "mac": "02:00:00:00:00:07", "ips": []string{"10.0.0.7/24"}, "other": 1,
}

// Read returns what plugins had of libcni for ADD, and what libcni gives them for DEL.
func TestReadAsLibcni(t *testing.T) {
	for _, c := range []struct{ what, config string }{
		{"a list", `{"cniVersion":"1.0.0","name":"net.a-b_c","disableCheck":true,"plugins":[
			{"type":"x","capabilities":{"portMappings":true,"mac":true,"bandwidth":true},"runtimeConfig":{"old":1},"ipam":{"type":"host-local","n":9007199254740993}},
			{"type":"y","capabilities":{"mac":false,"ips":true},"k":"<é>","name":"own","cniVersion":"0.1.0","prevResult":{}},{"type":"z","runtimeConfig":{"old":1},"d":1,"d":2}]}`},
		{"an old version, to which the result is converted", `{"cniVersion":"0.4.0","name":"n","plugins":[{"type":"x"}]}`},
		{"the newest version", `{"cniVersion":"0.3.1","cniVersions":["1.1.0","0.4.0"],"name":"n","plugins":[{"type":"x"}]}`},
		{"one plugin", `{"cniVersion":"1.0.0","name":"n","type":"x","capabilities":{"ips":true},"dns":{},"k":9007199254740993,"l":1,"l":2}`},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := newNode(t)
			rt := &libcni.RuntimeConf{ContainerID: idA, NetNS: "/run/netns/a", IfName: "eth0", Args: podArgs, CapabilityArgs: capabilities}
			p := &plugins{result: result}
			runtime := n.libcni("var/lib/cni", p)
			var del func() error
			if strings.Contains(c.config, "plugins") {
				list, err := libcni.NetworkConfFromBytes([]byte(c.config))
				nettest.Must(t, err)
				_, err = runtime.AddNetworkList(t.Context(), list, rt)
				nettest.Must(t, err)
				del = func() error { return runtime.DelNetworkList(t.Context(), list, rt) }
			} else {
				conf, err := libcni.NetworkPluginConfFromBytes([]byte(c.config))
				nettest.Must(t, err)
				_, err = runtime.AddNetwork(t.Context(), conf, rt)
				nettest.Must(t, err)
				del = func() error { return runtime.DelNetwork(t.Context(), conf, rt) }
			}
			all := n.sound()
			if len(all) != 1 || len(all[0].Plugins) != len(p.runs) {
				t.Fatalf("%+v", all)
			}
			a, adds := all[0], p.runs
			p.runs = nil
			nettest.Must(t, del())
			for i, r := range adds {
				last := p.runs[len(adds)-1-i]
				config, list, _ := had(t, r.stdin)
				config2, _, prev := had(t, last.stdin)
				if got := compact(t, a.Plugins[i]); got != config || got != config2 {
					t.Errorf("plugin %d:\n got %s\n ADD %s\n DEL %s", i, got, config, config2)
				}
				if got := compact(t, a.Result); got != prev || got == "" {
					t.Errorf("result:\n got %s\nwant %s", got, prev)
				}
				if got := fmt.Sprintf("%q%q", a.Network, a.Version); got != list {
					t.Errorf("name and version: %s, want %s", got, list)
				}
				if r.args != a.Args || r.netns != a.Netns || r.ifname != a.Ifname {
					t.Errorf("environment: %+v, got %+v", r, a)
				}
			}
			if want := (&api.Pod{Namespace: "shop", Name: "web", UID: "9c1f", InfraContainer: idA}); !reflect.DeepEqual(a.Pod, want) || a.Container != idA {
				t.Errorf("pod %+v of container %s", a.Pod, a.Container)
			}
			if a.DisableCheck != strings.Contains(c.config, "disableCheck") || a.NoResult != "" || a.Path != "/var/lib/cni/results/"+a.Network+"-"+idA+"-eth0" {
				t.Errorf("%+v", a)
			}
		})
	}
}

// Whoever has the runtime's cache gets containers in the order of their IDs, and each one's attachments as libcni wrote them.
func TestOrder(t *testing.T) {
	n := newNode(t)
	list := func(name string) string {
		return fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"plugins":[{"type":"x"}]}`, name)
	}
	began := time.Unix(1e9, 0)
	for _, c := range []struct {
		cache, network, container, ifname string
		after                             time.Duration
	}{
		{"var/lib/cni", "z", idB, "net1", 0}, {"var/lib/cni/cache", "y", idB, "eth0", 1}, {"var/lib/cni", "x", idB, "net10", 2}, {"var/lib/cni", "w", idB, "net9", 2},
		{"var/lib/cni", "b", "c", "eth0", 0}, {"var/lib/cni", "a", "c", "eth1", 0}, {"var/lib/cni", "z", "a", "eth0", 9},
	} {
		n.add(c.cache, list(c.network), libcni.RuntimeConf{ContainerID: c.container, NetNS: "/n", IfName: c.ifname})
		path := filepath.Join(n.dir, c.cache, "results", c.network+"-"+c.container+"-"+c.ifname)
		nettest.Must(t, os.Chtimes(path, began, began.Add(c.after)))
	}
	if got, want := names(n.sound()), "z eth0, z net1, y eth0, w net9, x net10, b eth0, a eth1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Older files have no netns: an interface of the result is in it. A pod's loopback device is the runtime's.
func TestOlderFiles(t *testing.T) {
	n := newNode(t)
	const list = `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"x"}]}`
	n.add("var/lib/cni", list, libcni.RuntimeConf{ContainerID: idB, IfName: "eth0"})
	n.add("var/lib/cni", `{"cniVersion":"0.3.1","name":"cni-loopback","plugins":[{"type":"loopback"}]}`, libcni.RuntimeConf{ContainerID: idB, IfName: "lo", NetNS: "/n"})
	all := n.sound()
	if len(all) != 1 || all[0].Netns != "/run/netns/a" || all[0].Pod != nil || all[0].Args != "" {
		t.Errorf("%+v", all)
	}
	for _, sandboxes := range []string{`{"sandbox":"/a"},{"sandbox":"/b"},{"sandbox":"/b"}`, `{"sandbox":"a"}`, `{}`} {
		n.write("var/lib/cni/results/n-b-eth0", file(func(f map[string]any) {
			delete(f, "netns")
			f["result"] = raw(`{"cniVersion":"1.0.0","interfaces":[` + sandboxes + `]}`)
		}))
		if all := n.sound(); all[0].Netns != "" || all[0].Result == nil {
			t.Errorf("%s: %+v", sandboxes, all)
		}
	}
}

// A result that cannot be read is no reason to keep what the attachment has taken: libcni's DEL does without it, too.
func TestNoResult(t *testing.T) {
	for result, want := range map[string]string{
		`null`:                   "there is no result",
		`{"cniVersion":"9.9.9"}`: `reading the result: unsupported CNI result version "9.9.9"`,
		`{"cniVersion":"1.0.0","ips":[{"address":"x"}]}`: "reading the result",
		`[]`: "reading the result: decoding version",
	} {
		n := newNode(t)
		n.write("var/lib/cni/results/n-b-eth0", file(func(f map[string]any) { f["result"] = raw(result) }))
		all := n.sound()
		if len(all) != 1 || all[0].Result != nil || !strings.Contains(all[0].NoResult, want) {
			t.Errorf("%s: %+v", result, all)
		}
	}
}

func TestOwnAndString(t *testing.T) {
	n := newNode(t)
	rt := libcni.RuntimeConf{ContainerID: idA, NetNS: "/n", IfName: "eth0", Args: podArgs}
	n.add("var/lib/cni", `{"cniVersion":"1.0.0","name":"berth","plugins":[{"type":"berth-cni"},{"type":"y"}]}`, rt)
	rt.ContainerID, rt.Args = idB, nil
	n.add("var/lib/cni", `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"x"},{"type":"berth-cni"}]}`, rt)
	all := n.sound()
	if len(all) != 2 || !all[0].Own() || all[1].Own() || (former.Attachment{}).Own() {
		t.Fatalf("%+v", all)
	}
	for i, want := range []string{
		"shop/web, container 0123456789ab: eth0 of network berth, by berth-cni, y",
		"unknown pod, container b: eth0 of network n, by x, berth-cni",
	} {
		if got := all[i].String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
