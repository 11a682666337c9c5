package former_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/berth-net/berth/internal/former"
	"github.com/berth-net/berth/internal/nettest"
)

const (
	idM        = "0123456789abcdef0123456789abcdef"
	scratchOfM = "var/lib/cni/multus/" + idM
	multusOfM  = "var/lib/cni/results/multus-cni-network-" + idM + "-eth0"
)

// multus is a node as Multus leaves it (testdata/multus/README.md), and what each plugin had.
func multus(t *testing.T) (n node, had []multusRun) {
	t.Helper()
	n = newNode(t)
	nettest.Must(t, os.CopyFS(n.dir, os.DirFS("testdata/multus")))
	text, err := os.ReadFile("testdata/multus/stdin.json")
	nettest.Must(t, err)
	nettest.Must(t, json.Unmarshal(text, &had))
	return n, had
}

type multusRun struct {
	Plugin, Ifname, Args string
	Stdin                json.RawMessage
}

// same checks that attachments are those of runs, with the same configurations, one after the other.
func same(t *testing.T, all []former.Attachment, runs []multusRun) {
	t.Helper()
	for _, a := range all {
		for i, kind := range a.Types() {
			if len(runs) == 0 {
				t.Fatalf("nobody executed %s of %s", kind, a)
			}
			r := runs[0]
			runs = runs[1:]
			config, list, _ := had(t, r.Stdin)
			if kind != r.Plugin || a.Ifname != r.Ifname || compact(t, a.Plugins[i]) != config || fmt.Sprintf("%q%q", a.Network, a.Version) != list {
				t.Errorf("%s has %s of version %s\nand %s had, as %s, %s", a, a.Plugins[i], a.Version, r.Plugin, r.Ifname, r.Stdin)
			}
		}
	}
	if len(runs) > 0 {
		t.Errorf("%s is not among %v", runs[0].Plugin, all)
	}
}

// Each delegate is an attachment with what its plugins had; Multus's own is none. The entry of cbr0 in Multus's cache lacks the plugin
// that lay beside the list's file, and the scratch file has it.
func TestMultus(t *testing.T) {
	n, runs := multus(t)
	all := n.sound()
	if got, want := names(all), "cbr0 eth0, storage net1, backup-net bak0"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	same(t, all, runs)
	for i, last := range []int{2, 3, 5} { // the plugin whose result is the delegate's
		a := all[i]
		if a.Args != runs[last].Args || a.Netns != "/run/netns/web" || a.NoResult != "" {
			t.Errorf("%+v", a)
		}
		for _, want := range []string{fmt.Sprintf(`"cniVersion":%q`, a.Version), fmt.Sprintf(`"10.0.0.%d/24"`, last+1)} {
			if !strings.Contains(string(a.Result), want) {
				t.Errorf("%s has no %s", a.Result, want)
			}
		}
		if a.Pod == nil || a.Pod.Namespace+a.Pod.Name+a.Pod.UID != "shopweb9c1f" || a.DisableCheck != (i == 2) {
			t.Errorf("%+v of %+v", a, a.Pod)
		}
		if !strings.HasPrefix(a.Path, "/var/lib/cni/multus/results/"+a.Network+"-") {
			t.Errorf("path %s", a.Path)
		}
	}
	if want := []string{"/" + scratchOfM, "/" + multusOfM}; !reflect.DeepEqual(all[0].Beside, want) || all[1].Beside != nil {
		t.Errorf("beside: %v", all[0].Beside)
	}
}

// A delegate that no cache has is an attachment without a result: its ADD was cut short.
func TestMultusCutShort(t *testing.T) {
	n, runs := multus(t)
	n.remove("var/lib/cni/multus/results/*")
	all := n.sound()
	same(t, all, runs)
	text, err := os.ReadFile(filepath.Join(n.dir, multusOfM))
	nettest.Must(t, err)
	for _, a := range all {
		var runtime struct{ CniArgs [][2]string }
		nettest.Must(t, json.Unmarshal(text, &runtime))
		if a.Result != nil || a.NoResult == "" || a.Path != "/"+scratchOfM || a.Netns != "/run/netns/web" || a.Pod == nil || !strings.HasPrefix(a.Args, "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;") {
			t.Errorf("%+v", a)
		}
	}
	if want := []string{"/" + multusOfM}; !reflect.DeepEqual(all[0].Beside, want) {
		t.Errorf("beside: %v", all[0].Beside)
	}

	// The runtime's entry is gone, too: what other delegates' entries say serves, without the arguments that are theirs alone.
	n, _ = multus(t)
	n.remove(multusOfM)
	n.remove("var/lib/cni/multus/results/cbr0-*")
	n.remove("var/lib/cni/multus/results/backup-*")
	all = n.sound()
	if names(all) != "cbr0 eth0, storage net1, backup-net bak0" {
		t.Fatalf("%v", all)
	}
	for _, i := range []int{0, 2} {
		if a := all[i]; a.NoResult == "" || a.Pod == nil || a.Netns != "/run/netns/web" || strings.Contains(a.Args, ";IP=") || strings.Contains(a.Args, ";MAC=") {
			t.Errorf("%+v", a)
		}
	}

	// Nothing is left but the scratch file.
	n.remove("var/lib/cni/multus/results/*")
	if all = n.sound(); names(all) != "cbr0 eth0, storage net1, backup-net bak0" || all[0].Pod != nil || all[0].Netns != "" || all[0].Beside != nil {
		t.Errorf("%+v", all)
	}
}

// Multus passes on what its own plugin declares, of the capabilities that it knows, and what the pod asked for, which the first delegate
// does not get.
func TestMultusCapabilities(t *testing.T) {
	n := newNode(t)
	n.write("var/lib/cni/results/n-b-eth0", file(func(f map[string]any) {
		f["config"] = []byte(`{"name":"n","type":"multus","capabilities":{"bandwidth":true,"unknown":true,"ips":false}}`)
		f["capabilityArgs"] = map[string]int{"bandwidth": 1, "unknown": 2, "ips": 3}
	}))
	const plugin = `"type":"x","capabilities":{"bandwidth":true,"unknown":true,"ips":true,"mac":true,"infinibandGUID":true,"deviceID":true}`
	asked := map[string]any{"ipRequest": []string{"10.0.0.1"}, "macRequest": "m", "infinibandGUIDRequest": "g", "deviceID": "d", "Bytes": []byte(`{"name":"m",` + plugin + `}`)}
	text, err := json.Marshal([]any{asked, asked})
	nettest.Must(t, err)
	n.write("var/lib/cni/multus/b", string(text))
	for i, want := range []string{`{"bandwidth":1}`, `{"bandwidth":1,"deviceID":"d","infinibandGUID":"g","ips":["10.0.0.1"],"mac":"m"}`} {
		a := n.sound()[i]
		if got := compact(t, a.Plugins[0]); got != compact(t, raw(`{"runtimeConfig":`+want+`,`+plugin+`}`)) {
			t.Errorf("%s has %s", a, got)
		}
	}
}

// Without the scratch file, or beside it, Multus's cache tells of delegates: those that were attached later by the daemon's API.
func TestMultusCacheAlone(t *testing.T) {
	n, _ := multus(t)
	n.add("var/lib/cni/multus", `{"cniVersion":"1.0.0","name":"later","plugins":[{"type":"x"}]}`, libcni.RuntimeConf{ContainerID: idM, NetNS: "/n", IfName: "net0"})
	if got, want := names(n.sound()), "cbr0 eth0, storage net1, backup-net bak0, later net0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	n.remove(scratchOfM)
	if all := n.sound(); len(all) != 4 || len(all[0].Beside) != 1 {
		t.Errorf("%+v", all)
	}
	n.remove("var/lib/cni/multus/results/*")
	if all, problems := n.read(); all != nil || fmt.Sprint(problems) != "[/"+multusOfM+": Multus attached the pod, and has left no delegates]" {
		t.Errorf("%v, %v", all, problems)
	}
}

// Multus's folder is where its configuration says, or the caller.
func TestMultusFolder(t *testing.T) {
	n, _ := multus(t)
	nettest.Must(t, os.Rename(filepath.Join(n.dir, "var/lib/cni/multus"), filepath.Join(n.dir, "elsewhere")))
	if all, problems := n.read(); all != nil || len(problems) != 1 {
		t.Errorf("%v, %v", all, problems)
	}
	if got, want := names(n.sound("/elsewhere", "/elsewhere/")), "cbr0 eth0, storage net1, backup-net bak0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	multus := func(dir string) {
		n.write(multusOfM, file(func(f map[string]any) {
			f["containerId"], f["networkName"] = idM, "multus-cni-network"
			f["config"] = []byte(`{"name":"multus-cni-network","type":"multus-shim","cniDir":"` + dir + `"}`)
		}))
	}
	multus("/elsewhere")
	if got, want := names(n.sound()), "cbr0 eth0, storage net1, backup-net bak0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	multus("elsewhere")
	if _, problems := n.read(); len(problems) != 2 || !strings.Contains(problems[0].Reason, `cniDir is "elsewhere"; expected an absolute path`) {
		t.Errorf("%v", problems)
	}
	// With libcni's own folder for a cniDir, one cache has both. The runtime's entry for Multus, and the first delegate's, are of one name.
	n = newNode(t)
	n.write("var/lib/cni/results/n-b-eth0", file())
	n.write("var/lib/cni/b", scratchOf(`{"name":"n","type":"x"}`, `{"name":"m","type":"y"}`))
	n.write("var/lib/cni/cache/results/n-b-eth0", conf(`{"name":"n","type":"multus","cniDir":"/var/lib/cni"}`))
	if got, want := names(n.sound()), "n eth0, m net1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Plugins beside Multus in the runtime's list have to be released as well.
func TestMultusInAList(t *testing.T) {
	n := newNode(t)
	n.write("var/lib/cni/multus/b", scratchOf(`{"name":"m","type":"x"}`))
	n.write("var/lib/cni/results/n-b-eth0", conf(`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"multus"},{"type":"y"},{"type":"z"}]}`))
	all := n.sound()
	if names(all) != "m eth0, n eth0" || strings.Join(all[1].Types(), " ") != "y z" || all[1].Result == nil {
		t.Errorf("%v", all)
	}
	n.remove("var/lib/cni/multus/b")
	if all, problems := n.read(); names(all) != "n eth0" || all[0].Beside != nil || len(problems) != 1 {
		t.Errorf("%+v, %v", all, problems)
	}
}

// The first delegate's interface is the one that the runtime asked Multus for. A runtime asks once for each container: a second entry is
// a problem.
func TestMultusInterface(t *testing.T) {
	n := newNode(t)
	multus := func(ifname string) {
		n.write("var/lib/cni/results/n-b-"+ifname, file(func(f map[string]any) {
			f["ifName"], f["config"] = ifname, []byte(`{"name":"n","type":"multus"}`)
		}))
	}
	n.write("var/lib/cni/multus/b", scratchOf(`{"name":"m","type":"x"}`))
	multus("eth5")
	if got := names(n.sound()); got != "m eth5" {
		t.Errorf("%s", got)
	}
	multus("eth6")
	if all, problems := n.read(); names(all) != "m eth5" || fmt.Sprint(problems) != "[/var/lib/cni/results/n-b-eth6: /var/lib/cni/results/n-b-eth5 says that Multus attached the container, too]" {
		t.Errorf("%v, %v", all, problems)
	}
}

// scratchOf is a scratch file with configurations.
func scratchOf(configs ...string) string {
	var delegates []map[string]any
	for _, c := range configs {
		delegates = append(delegates, map[string]any{"Bytes": []byte(c)})
	}
	text, err := json.Marshal(delegates)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func TestScratchProblems(t *testing.T) {
	for what, c := range map[string]struct{ name, text, want, left string }{
		"half of it":                 {"b", `[{"Bytes"`, "decoding it", ""},
		"no list":                    {"b", `{}`, "decoding it", ""},
		"no delegates":               {"b", `[]`, "it has no delegates", ""},
		"no container":               {"b c", scratchOf(`{"name":"n","type":"x"}`), "its name is no container's ID", ""},
		"no configuration":           {"b", `[{}, {"Bytes":"eyJuYW1lIjoibiIsInR5cGUiOiJ4In0="}]`, "delegate 1: decoding the configuration", "n net1"},
		"no base64":                  {"b", `[{"Bytes":"!"}]`, "decoding it: illegal base64", ""},
		"a type with a path":         {"b", scratchOf(`{"name":"n","type":"x"}`, `{"name":"n","type":"a/b"}`), `delegate 2: plugin 1: invalid configuration: type is "a/b"`, "n eth0"},
		"Multus again":               {"b", scratchOf(`{"name":"n","type":"multus"}`), "delegate 1: it is Multus again", ""},
		"two of one name":            {"b", `[{"Bytes":"eyJuYW1lIjoibiIsInR5cGUiOiJ4In0="},{"Bytes":"eyJuYW1lIjoibiIsInR5cGUiOiJ4In0=","ifnameRequest":"eth0"}]`, "delegate 2: another one has attached eth0 to network n", "n eth0"},
		"an odd interface":           {"b", `[{"Bytes":"eyJuYW1lIjoibiIsInR5cGUiOiJ4In0=","ifnameRequest":"a/b"}]`, "delegate 1: invalid environment variable CNI_IFNAME", ""},
		"a plugin of no JSON":        {"b", `[{"CNINetworkConfigList":{"Name":"n","Plugins":[{"Bytes":"eyJuYW1lIjoibiIsInR5cGUiOiJ4In0="},{}]}}]`, "delegate 1: plugin 2", ""},
		"a list of no such version":  {"b", `[{"CNINetworkConfigList":{"Name":"n","CNIVersion":"7","Plugins":[{"Bytes":"eyJuYW1lIjoibiIsInR5cGUiOiJ4In0="}]}}]`, `delegate 1: cniVersion is not supported`, ""},
		"a delegate of another kind": {"b", `[null]`, "delegate 1: decoding the configuration", ""},
	} {
		n := newNode(t)
		n.write("var/lib/cni/multus/"+c.name, c.text)
		all, problems := n.read()
		if names(all) != c.left || len(problems) != 1 || problems[0].Path != "/var/lib/cni/multus/"+c.name || !strings.HasPrefix(problems[0].Reason, c.want) {
			t.Errorf("%s: %v, %v", what, all, problems)
		}
	}
	n := newNode(t)
	n.write("var/lib/cni/multus/b", scratchOf(`{"name":"n","type":"x"}`))
	n.write("elsewhere/b", scratchOf(`{"name":"m","type":"x"}`))
	if all, problems := n.read("/elsewhere"); names(all) != "n eth0" || fmt.Sprint(problems) != "[/elsewhere/b: /var/lib/cni/multus/b speaks of the same container]" {
		t.Errorf("%v, %v", all, problems)
	}
}
