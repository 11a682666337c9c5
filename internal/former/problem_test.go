package former_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/former"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

func raw(text string) json.RawMessage { return json.RawMessage(text) }

// file is a sound file of libcni's cache, n-b-eth0, as others change it.
func file(changes ...func(map[string]any)) string {
	f := map[string]any{
		"kind": "cniCacheV1", "containerId": "b", "ifName": "eth0", "networkName": "n", "netns": "/n",
		"config": []byte(`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"x"}]}`), "result": raw(result),
	}
	for _, change := range changes {
		change(f)
	}
	text, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func with(key string, value any) string { return file(func(f map[string]any) { f[key] = value }) }

func conf(text string) string { return with("config", []byte(text)) }

// Each file of which nobody can tell what it speaks of is a problem, and the others are read.
func TestProblems(t *testing.T) {
	for what, c := range map[string]struct{ name, text, want string }{
		"nothing in it":             {"", "", "decoding it: unexpected end of JSON input"},
		"half of it":                {"", file()[:100], "decoding it: unexpected end of JSON input"},
		"no object":                 {"", "[]", "decoding it: json: cannot unmarshal array"},
		"null":                      {"", "null", "it has no kind"},
		"the older form":            {"", result, "it has no kind: libcni before 0.8"},
		"another kind":              {"", with("kind", strings.Repeat("k", 100)), `its kind is "` + strings.Repeat("k", 64) + `"; expected "cniCacheV1"`},
		"no base64":                 {"", with("config", "!"), "decoding it: illegal base64"},
		"no configuration":          {"", with("config", nil), "decoding the configuration: unexpected end of JSON input"},
		"a broken configuration":    {"", conf("{"), "decoding the configuration"},
		"null for a configuration":  {"", conf("null"), "no name"},
		"no name":                   {"", conf(`{"plugins":[{"type":"x"}]}`), "no name"},
		"another name":              {"", conf(`{"name":"o","plugins":[{"type":"x"}]}`), `it is of network "n", and its configuration of network "o"`},
		"one plugin, without name":  {"", conf(`{"type":"x"}`), `name is ""`},
		"a plugin and a list":       {"", conf(`{"name":"n","type":"x","plugins":[{"type":"x"}]}`), "both type and plugins"},
		"no plugins":                {"", conf(`{"name":"n"}`), "has no plugins: they lay beside"},
		"an empty list":             {"", conf(`{"name":"n","plugins":[]}`), "no plugins in list"},
		"no type":                   {"", conf(`{"name":"n","plugins":[{"type":"x"},{"k":1}]}`), "missing 'type'"},
		"a type that is no text":    {"", conf(`{"name":"n","plugins":[{"type":5}]}`), "plugin config 0"},
		"a type with a path":        {"", conf(`{"name":"n","plugins":[{"type":"x"},{"type":"../x"}]}`), `plugin 2: invalid configuration: type is "../x"; expected a plugin's file name`},
		"a type that is a folder":   {"", conf(`{"name":"n","plugins":[{"type":".."}]}`), `type is ".."`},
		"a type with odd bytes":     {"", conf("{\"name\":\"n\",\"plugins\":[{\"type\":\"x\\u0000\"}]}"), `type is "x\u0000"`},
		"an ipam with a path":       {"", conf(`{"name":"n","type":"x","ipam":{"type":"a/b"}}`), `ipam.type is "a/b"`},
		"a delegate with a path":    {"", conf(`{"name":"n","type":"x","delegate":{"type":"a/b"}}`), `delegate.type is "a/b"`},
		"two types":                 {"", conf(`{"name":"n","type":"x","TYPE":"y"}`), `its type is "x", and "y" by another key`},
		"an unknown version":        {"", conf(`{"cniVersion":"9.9.9","name":"n","plugins":[{"type":"x"}]}`), `cniVersion "9.9.9"`},
		"another container":         {"", with("containerId", "c"), "it speaks of n-c-eth0"},
		"another interface":         {"", with("ifName", "eth1"), "it speaks of n-b-eth1"},
		"another network":           {"", with("networkName", "m"), "it speaks of m-b-eth0"},
		"no container":              {"", with("containerId", ""), "CNI_CONTAINERID"},
		"a container with a path":   {"", with("containerId", "../../b"), "CNI_CONTAINERID"},
		"an interface with a blank": {"n-b-e 0", with("ifName", "e 0"), "CNI_IFNAME"},
		"lo, of a network":          {"n-b-lo", with("ifName", "lo"), "CNI_IFNAME"},
		"a network with odd bytes":  {"n\x1b[0m-b-eth0", with("networkName", "n\x1b[0m"), `networkName: invalid configuration: name is "n\x1b[0m"`},
		"a relative netns":          {"", with("netns", "n"), "CNI_NETNS"},
		"NUL in arguments":          {"", with("cniArgs", [][2]string{{"K", "\x00"}}), "cniArgs has a NUL"},
		"a name that says nothing":  {"odd\xff", file(), "it speaks of n-b-eth0"},
	} {
		n := newNode(t)
		if c.name == "" {
			c.name = "n-b-eth0"
		}
		n.write("var/lib/cni/results/"+c.name, c.text)
		n.write("var/lib/cni/results/n-a-eth0", with("containerId", "a"))
		n.write("var/lib/cni/results/n-c-eth0", with("containerId", "c"))
		all, problems := n.read()
		if names(all) != "n eth0, n eth0" || len(problems) != 1 {
			t.Errorf("%s: %v, %v", what, all, problems)
			continue
		}
		p := problems[0]
		if p.Path != "/var/lib/cni/results/"+c.name || !strings.Contains(p.Reason, c.want) || len(p.Reason) > 1000 || !cni.IsShowable(p.String(), 2000) {
			t.Errorf("%s: %q, want %s", what, p, c.want)
		}
	}
}

// What is no file of bounded size neither holds Read up nor fills the memory; folders are no attachments.
func TestNoFiles(t *testing.T) {
	n := newNode(t)
	n.write("var/lib/cni/results/n-b-eth0", file())
	at := func(name string) string { return filepath.Join(n.dir, "var/lib/cni/results", name) }
	nettest.Must(t, unix.Mkfifo(at("fifo"), 0o600))
	nettest.Must(t, os.Symlink("/dev/zero", at("device")))
	nettest.Must(t, os.Symlink("nowhere", at("gone")))
	nettest.Must(t, os.WriteFile(at("large"), nil, 0o600))
	nettest.Must(t, os.Truncate(at("large"), 100<<20))
	nettest.Must(t, os.Mkdir(at("folder"), 0o700))
	all, problems := n.read()
	want := []former.Problem{
		{Path: "/var/lib/cni/results/device", Reason: "it is not a regular file"}, {Path: "/var/lib/cni/results/fifo", Reason: "it is not a regular file"},
		{Path: "/var/lib/cni/results/large", Reason: "it has more than 1048576 bytes"},
	}
	if names(all) != "n eth0" || fmt.Sprint(problems) != fmt.Sprint(want) {
		t.Errorf("%v, %v", all, problems)
	}
	if os.Geteuid() != 0 {
		nettest.Must(t, os.Chmod(at("n-b-eth0"), 0))
		if _, problems := n.read(); problems[len(problems)-1].Reason != "permission denied" {
			t.Errorf("%v", problems)
		}
	}
}

// Where not all can be read, that is an error, and nobody takes a part for the whole.
func TestTooMuch(t *testing.T) {
	fails := func(n node, want string) {
		t.Helper()
		all, problems, err := former.Read(root.Dir(n.dir))
		if err == nil || !strings.Contains(err.Error(), want) || all != nil || problems != nil {
			t.Errorf("%v, %v, %v; want %s", all, problems, err, want)
		}
	}
	n := newNode(t)
	n.write("var/lib/cni/results", "")
	fails(n, "listing what a former CNI has left: open "+n.dir+"/var/lib/cni/results: not a directory")

	n = newNode(t)
	nettest.Must(t, os.MkdirAll(filepath.Join(n.dir, "var/lib/cni"), 0o700))
	nettest.Must(t, unix.Mkfifo(filepath.Join(n.dir, "var/lib/cni/results"), 0o600))
	fails(n, "not a directory")

	n = newNode(t)
	n.write("var/lib/cni/results/0", "")
	n.links("var/lib/cni/results/", 16384)
	fails(n, "/var/lib/cni/results has more than 16384 files; remove those of pods that are gone")

	n = newNode(t)
	n.write("var/lib/cni/multus/0", "")
	nettest.Must(t, os.Truncate(filepath.Join(n.dir, "var/lib/cni/multus/0"), 1<<20))
	n.links("var/lib/cni/multus/", 256)
	fails(n, "the files have more than 268435456 bytes together")
}

// links makes further names of the file 0.
func (n node) links(folder string, count int) {
	n.Helper()
	first := filepath.Join(n.dir, folder, "0")
	for i := range count {
		nettest.Must(n, os.Link(first, fmt.Sprintf("%s-%d", first, i)))
	}
}

// Of two files about one attachment, the runtime's own cache counts.
func TestTwice(t *testing.T) {
	n := newNode(t)
	n.write("var/lib/cni/results/n-b-eth0", file())
	n.write("var/lib/cni/cache/results/n-b-eth0", conf(`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"y"}]}`))
	all, problems := n.read()
	if len(all) != 1 || all[0].Types()[0] != "x" || fmt.Sprint(problems) != "[/var/lib/cni/cache/results/n-b-eth0: /var/lib/cni/results/n-b-eth0 speaks of the same attachment]" {
		t.Errorf("%v, %v", all, problems)
	}
}

// What cannot be shown is no pod's name.
func TestOddPod(t *testing.T) {
	for pod, args := range map[string][][2]string{
		"<nil>":    {{"K8S_POD_NAMESPACE", "a"}, {"K8S_POD_NAME", "b\x1b"}},
		"<nil>#2":  {{"K8S_POD_NAMESPACE", "a"}},
		"&{a b  }": {{"K8S_POD_NAMESPACE", ""}, {"K8S_POD_NAMESPACE", "a"}, {"K8S_POD_NAME", "b"}, {"K8S_POD_NAME", "c"}, {"odd;=", "\x1b"}},
	} {
		n := newNode(t)
		n.write("var/lib/cni/results/n-b-eth0", with("cniArgs", args))
		all := n.sound()
		if got, _, _ := strings.Cut(pod, "#"); len(all) != 1 || fmt.Sprint(all[0].Pod) != got {
			t.Errorf("%q: %v", args, all[0].Pod)
		}
	}
}

// files returns all that Read has said something about.
func files(all []former.Attachment, problems []former.Problem) map[string]bool {
	known := map[string]bool{}
	for _, a := range all {
		known[a.Path] = true
		for _, path := range a.Beside {
			known[path] = true
		}
	}
	for _, p := range problems {
		known[p.Path] = true
	}
	return known
}
