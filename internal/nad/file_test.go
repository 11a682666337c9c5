package nad_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nad"
	"github.com/berth-net/berth/internal/nettest"
)

// folder writes files by name, and returns their folder.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		nettest.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		nettest.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

// types are the types of a network's plugins.
func types(n *nad.Network) (all []string) {
	for _, p := range n.Plugins {
		all = append(all, p.Type)
	}
	return all
}

func TestFindFile(t *testing.T) {
	dir := folder(t, map[string]string{
		"10-a.conf":         `{"name":"a","type":"late"}`,
		"20-a.conflist":     `{"name":"a","plugins":[{"type":"first"},{"type":"second"}]}`,
		"30-a.conflist":     `{"name":"a","plugins":[{"type":"third"}]}`,
		"20-b.json":         `{"cniVersion":"0.3.1","name":"b","type":"json"}`,
		"30-b.conf":         `{"name":"b","type":"conf"}`,
		"40-c.txt":          `{"name":"c","type":"txt"}`,
		"50-d.conflist/x":   ``,
		"60-e.conflist":     `{"name":"e","plugins":[{"type":"in"}]}`,
		"e/20.conf":         `{"type":"beside2","capabilities":{"mac":true}}`,
		"e/10.conf":         `{"type":"beside1"}`,
		"e/30.conflist":     `{"type":"no"}`,
		"60-f.conflist":     `{"name":"f","loadOnlyInlinedPlugins":true,"plugins":[{"type":"in"}]}`,
		"f/10.conf":         `{"type":"beside"}`,
		"60-g.conflist":     `{"name":"g","cniVersion":"1.1.0"}`,
		"g/10.conf":         `{"type":"beside"}`,
		"60-h.conf":         `{"name":"h","type":"one"}`,
		"h/10.conf":         `{"type":"beside"}`,
		"00-broken.conf":    `{`,
		"00-other.conflist": `{"name":"other","plugins":[]}`,
	})
	for name, want := range map[string][]string{
		"a": {"first", "second"}, "b": {"json"}, "e": {"in", "beside1", "beside2"}, "f": {"in"}, "g": {"beside"}, "h": {"one"},
	} {
		n, e := nad.FindFile(dir, name)
		if e != nil || n.Name != name || !reflect.DeepEqual(types(n), want) {
			t.Errorf("%s: %+v, %v, want %q", name, n, e, want)
		}
	}
	if n, e := nad.FindFile(dir, "e"); e != nil || !reflect.DeepEqual(n.Plugins[2].Capabilities, []string{"mac"}) {
		t.Errorf("%+v, %v", n, e)
	}
	for name, want := range map[string]string{
		"c":     `has a configuration whose name is "c"; some cannot be read: ` + dir + "/00-broken.conf: at byte 1",
		"d":     `has a configuration whose name is "d"`,
		"other": dir + "/00-other.conflist: plugins is []",
		"../a":  "expected 1 to 128 letters",
		"":      "expected 1 to 128 letters",
	} {
		if n, e := nad.FindFile(dir, name); e == nil || !strings.Contains(e.Details, want) {
			t.Errorf("%q: %+v, %v, want %s", name, n, e, want)
		}
	}
}

// FindFile finds what libcni finds.
func TestFindFileAsLibcni(t *testing.T) {
	for i, files := range []map[string]string{
		{"1.conf": `{"name":"n","type":"a"}`, "2.conflist": `{"name":"n","plugins":[{"type":"b"}]}`},
		{"2.conf": `{"name":"n","type":"a"}`, "1.json": `{"name":"n","type":"b"}`, "3.conflist": `{"name":"x","plugins":[{"type":"c"}]}`},
		{"1.conflist": `{"name":"n","plugins":[{"type":"b"}]}`, "n/2.conf": `{"type":"d"}`, "n/1.conf": `{"type":"e"}`},
		{"9.conflist": `{"name":"n","plugins":[{"type":"b"}]}`, "10.conflist": `{"name":"n","plugins":[{"type":"c"}]}`},
	} {
		dir := folder(t, files)
		theirs, err := libcni.LoadNetworkConf(dir, "n")
		nettest.Must(t, err)
		var want []string
		for _, p := range theirs.Plugins {
			want = append(want, p.Network.Type)
		}
		if ours, e := nad.FindFile(dir, "n"); e != nil || !reflect.DeepEqual(types(ours), want) {
			t.Errorf("%d: %+v, %v, want %q", i, ours, e, want)
		}
	}
}

// What is no file of bounded size neither holds FindFile up nor fills the memory.
func TestFindFileBounds(t *testing.T) {
	dir := folder(t, map[string]string{
		"1.conf":     `{"name":"big","k":"` + strings.Repeat("v", 64<<10) + `","type":"x"}`,
		"2.conflist": `{"name":"n"}`,
		"n/1.conf":   `{"type":"../x"}`,
		"3.conf":     `{"name":"ok","type":"x"}`,
	})
	nettest.Must(t, unix.Mkfifo(filepath.Join(dir, "0.conf"), 0o600))
	nettest.Must(t, os.Symlink("nowhere", filepath.Join(dir, "00.conf")))
	nettest.Must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	if n, e := nad.FindFile(dir, "ok"); e != nil || n.Name != "ok" {
		t.Errorf("%+v, %v", n, e)
	}
	for name, want := range map[string][]string{
		"big": {"/0.conf: it is not a regular file", "00.conf: open", "1.conf: it has more than 65536 bytes"},
		"n":   {"2.conflist: n/1.conf: type is \"../x\""},
	} {
		_, e := nad.FindFile(dir, name)
		for _, w := range want {
			if e == nil || !strings.Contains(e.Details, w) {
				t.Errorf("%s: %v, want %s", name, e, w)
			}
		}
	}
	if _, e := nad.FindFile(filepath.Join(dir, "fifo"), "n"); e == nil || e.Code != 5 {
		t.Errorf("a FIFO for a folder: %v", e)
	}
	if _, e := nad.FindFile(filepath.Join(dir, "nothing"), "n"); e == nil || !strings.Contains(e.Details, `whose name is "n"`) {
		t.Errorf("no folder: %v", e)
	}
	for i := range 1024 {
		nettest.Must(t, os.WriteFile(filepath.Join(dir, strings.Repeat("f", i%200+1)+string(rune('a'+i/200))), nil, 0o600))
	}
	if _, e := nad.FindFile(dir, "ok"); e == nil || !strings.Contains(e.Details, "1024 entries or more") {
		t.Errorf("many files: %v", e)
	}
}
