package cri

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

var must = nettest.Must

// plant writes files below a folder. A text may name the folder as DIR.
func plant(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(strings.ReplaceAll(text, "DIR", dir)), 0o644))
	}
	return dir
}

// debian12 is the configuration of Debian's containerd 1.6.
const debian12 = `version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd/opt"
`

// v2, v3 are the beginnings of tables.
const (
	v2 = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\n"
	v3 = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\n"
)

type files = map[string]string

// containerds are configurations of containerd, and what they mean. DIR in front of a path stands
// for the folder of config.toml.
var containerds = []struct {
	name  string
	files files
	major int

	bin  []string
	from string // of bin, without the folder
	conf string
	max  int
	lo   bool
	off  string
}{
	{"Debian's", files{"config.toml": debian12}, 1, []string{"/usr/lib/cni"}, "bin_dir in DIR/config.toml", DefaultConfDir, 1, true, ""},
	{"none", nil, 1, []string{DefaultBinDir}, byDefault, DefaultConfDir, 1, true, ""},
	{"empty", files{"config.toml": ""}, 1, []string{DefaultBinDir}, byDefault, DefaultConfDir, 1, true, ""},
	{"version 1", files{"config.toml": "[plugins.cri.cni]\nbin_dir = '/v1'\nmax_conf_num = 2\n"}, 1,
		[]string{"/v1"}, "bin_dir in DIR/config.toml", DefaultConfDir, 2, true, ""},
	{"version 1 does not know the names of version 2", files{"config.toml": strings.TrimPrefix(v2, "version = 2\n") + "bin_dir = '/v2'\n"}, 1,
		[]string{DefaultBinDir}, byDefault, DefaultConfDir, 1, true, ""},
	{"containerd 2 knows none of version 1", files{"config.toml": strings.TrimPrefix(v2, "version = 2\n") + "bin_dir = '/v2'\n[plugins.cri.cni]\nbin_dir = '/v1'\n"}, 2,
		[]string{DefaultBinDir}, byDefault, DefaultConfDir, 1, true, ""},
	{"names of version 3 in version 2", files{"config.toml": "version = 2\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = ['/v3']\n"}, 2,
		[]string{"/v3"}, "bin_dirs in DIR/config.toml", DefaultConfDir, 1, true, ""},
	{"but not for containerd 1", files{"config.toml": "version = 2\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dir = '/v3'\n"}, 1,
		[]string{DefaultBinDir}, byDefault, DefaultConfDir, 1, true, ""},
	{"an import of before", files{"config.toml": "imports = ['more.toml']\n" + v3 + "bin_dirs = ['/v3']\n", "more.toml": v2 + "bin_dir = '/v2'\n"}, 2,
		[]string{"/v2"}, "bin_dir in DIR/more.toml", DefaultConfDir, 1, true, ""},
	{"an import replaces the whole plugin", files{
		"config.toml": "imports = ['DIR/more/*.toml']\n" + debian12 + "\n", "more/10.toml": v2 + "conf_dir = '/imported'\n"}, 1,
		[]string{DefaultBinDir}, byDefault, "/imported", 1, true, ""},
	{"in containerd 2 it replaces keys", files{
		"config.toml": "imports = ['DIR/more/*.toml']\n" + debian12 + "\n", "more/10.toml": v2 + "conf_dir = '/imported'\n"}, 2,
		[]string{"/usr/lib/cni"}, "bin_dir in DIR/config.toml", "/imported", 1, true, ""},
	{"an import about something else", files{
		"config.toml": "imports = ['more.toml']\n" + debian12, "more.toml": "version = 2\n[debug]\nlevel = 'info'\n"}, 1,
		[]string{"/usr/lib/cni"}, "bin_dir in DIR/config.toml", DefaultConfDir, 1, true, ""},
	{"imports in order, and theirs after them", files{
		"config.toml": "version = 2\nimports = ['a.toml', 'b.toml']\n",
		"a.toml":      "imports = ['c.toml', 'config.toml']\n" + v2 + "bin_dir = '/a'\n",
		"b.toml":      v2 + "bin_dir = '/b'\n", "c.toml": v2 + "bin_dir = '/c'\n"}, 1,
		[]string{"/c"}, "bin_dir in DIR/c.toml", DefaultConfDir, 1, true, ""},
	{"a relative pattern", files{"config.toml": "version = 3\nimports = ['conf.d/*.toml']\n", "conf.d/1.toml": v3 + "bin_dirs = ['/1']\n"}, 2,
		[]string{"/1"}, "bin_dirs in DIR/conf.d/1.toml", DefaultConfDir, 1, true, ""},
	{"version 3", files{"config.toml": v3 + "bin_dirs = ['/x/', '/y']\nconf_dir = '/z'\nmax_conf_num = 0\n"}, 2,
		[]string{"/x", "/y"}, "bin_dirs in DIR/config.toml", "/z", 0, true, ""},
	{"version 3 as containerd 2.0 has it", files{"config.toml": v3 + "bin_dir = '/x'\nuse_internal_loopback = true\n"}, 2,
		[]string{"/x"}, "bin_dir in DIR/config.toml", DefaultConfDir, 1, false, ""},
	{"version 3 as `containerd config default` of 2.1 has it", files{"config.toml": v3 + "bin_dir = ''\nbin_dirs = ['/opt/cni/bin']\n"}, 2,
		[]string{DefaultBinDir}, "bin_dirs in DIR/config.toml", DefaultConfDir, 1, true, ""},
	{"bin_dirs is nothing to containerd 1", files{"config.toml": v2 + "bin_dirs = ['/x']\nuse_internal_loopback = true\n"}, 1,
		[]string{DefaultBinDir}, byDefault, DefaultConfDir, 1, true, ""},
	{"a list is replaced, too", files{"config.toml": "imports = ['more.toml']\n" + v3 + "bin_dirs = ['/x']\n", "more.toml": v3 + "bin_dirs = ['/y', '/z']\n"}, 2,
		[]string{"/y", "/z"}, "bin_dirs in DIR/more.toml", DefaultConfDir, 1, true, ""},
	{"Docker's", files{"config.toml": "disabled_plugins = [\"cri\"]\n"}, 1,
		[]string{DefaultBinDir}, byDefault, DefaultConfDir, 1, true, `disabled_plugins in DIR/config.toml has "cri"`},
	{"off in version 2", files{"config.toml": "version = 2\ndisabled_plugins = ['io.containerd.grpc.v1.cri']\n"}, 1,
		[]string{DefaultBinDir}, byDefault, DefaultConfDir, 1, true, `disabled_plugins in DIR/config.toml has "io.containerd.grpc.v1.cri"`},
}

func TestContainerd(t *testing.T) {
	for _, test := range containerds {
		t.Run(test.name, func(t *testing.T) {
			dir := plant(t, test.files)
			config := filepath.Join(dir, "config.toml")
			r, err := containerd("containerd", config, func() int { return test.major })
			must(t, err)
			want := Runtime{
				Name: "containerd", Files: r.Files, BinDirs: Dirs{test.bin, strings.ReplaceAll(test.from, "DIR", dir)},
				ConfDir: Dirs{[]string{test.conf}, r.ConfDir.From}, MaxConf: test.max, Loopback: test.lo, Off: strings.ReplaceAll(test.off, "DIR", dir),
			}
			if !reflect.DeepEqual(r, want) {
				t.Errorf("%+v\nwanted\n%+v", r, want)
			}
			if program, err := exec.LookPath("containerd"); err == nil && len(test.files) > 0 {
				agrees(t, program, config, test.major, r)
			}
		})
	}
}

// agrees compares how the installed containerd and this package read a configuration, if
// containerd has the version that the test is about.
func agrees(t *testing.T, program, config string, major int, r Runtime) {
	t.Helper()
	out, err := exec.Command(program, "--version").Output()
	must(t, err)
	if installed, err := majorOf(string(out)); err != nil || installed != major {
		t.Logf("the installed containerd is another one: %.60q, %v", out, err)
		return
	}
	var complaint bytes.Buffer
	cmd := exec.Command(program, "--config", config, "config", "dump")
	cmd.Dir, cmd.Stderr = "/", &complaint
	out, err = cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, complaint.String())
	}
	if len(r.BinDirs.Paths) == 1 && strings.HasPrefix(r.BinDirs.From, "bin_dir in ") { // containerd 2 drops its default later
		out = bytes.ReplaceAll(out, []byte("bin_dirs = ['/opt/cni/bin']"), nil)
	}
	dumped := filepath.Join(t.TempDir(), "dumped.toml")
	must(t, os.WriteFile(dumped, bytes.ReplaceAll(out, []byte("imports = "), []byte("had = ")), 0o644))
	says, err := containerd(r.Name, dumped, func() int { return major })
	must(t, err)
	if r.Off == "" && (!reflect.DeepEqual(says.BinDirs.Paths, r.BinDirs.Paths) || says.Conf() != r.Conf() || says.MaxConf != r.MaxConf) {
		t.Errorf("containerd itself makes of it %+v, and we %+v", says, r)
	}
}

// A handler may have a folder of networks of its own.
func TestHandlers(t *testing.T) {
	dir := plant(t, files{"config.toml": v3 + `[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]
cni_conf_dir = '/etc/cni/kata.d/'
`})
	r, err := containerd("containerd", filepath.Join(dir, "config.toml"), func() int { return 2 })
	must(t, err)
	if want := map[string]string{"kata": "/etc/cni/kata.d"}; !reflect.DeepEqual(r.Handlers, want) {
		t.Errorf("%v, not %v", r.Handlers, want)
	}
}

// An error about an unreadable configuration names the file and, if the file is no TOML, the
// line.
func TestBroken(t *testing.T) {
	for name, test := range map[string]struct {
		files files
		want  []string
	}{
		"no TOML":                {files{"config.toml": "version = 2\n\n[plugins\n"}, []string{"/config.toml, line 3, column "}},
		"no text":                {files{"config.toml": "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = 5\n"}, []string{"/config.toml, line 3, column "}},
		"an import":              {files{"config.toml": "version = 2\nimports = ['x/*']\n", "x/1": "[\n"}, []string{"/x/1, line 1, column "}},
		"an import is missing":   {files{"config.toml": "version = 2\nimports = ['x']\n"}, []string{"/x: no such file"}},
		"a pattern that is none": {files{"config.toml": "version = 2\nimports = ['x/[*']\n"}, []string{"/config.toml: imports has ", "syntax error"}},
		"both":                   {files{"config.toml": v3 + "bin_dir = '/x'\nbin_dirs = ['/y']\n"}, []string{"/config.toml: bin_dir and bin_dirs are both set"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := plant(t, test.files)
			_, err := containerd("containerd", filepath.Join(dir, "config.toml"), func() int { return 2 })
			for _, w := range test.want {
				if err == nil || !strings.Contains(err.Error(), w) {
					t.Errorf("%v\nlacks %q", err, w)
				}
			}
		})
	}
	dir := plant(t, files{"crio.conf.d/10-x": "[crio.network]\nplugin_dirs = '/x'\n"})
	if _, err := crio(filepath.Join(dir, "crio.conf")); err == nil || !strings.Contains(err.Error(), "crio.conf.d/10-x, line 2, ") {
		t.Error(err)
	}
}

func TestCRIO(t *testing.T) {
	for name, test := range map[string]struct {
		files                  files
		bin                    []string
		binFrom, conf, network string
	}{
		"none": {nil, []string{DefaultBinDir}, byDefault, DefaultConfDir, ""},
		"its own": {files{"crio.conf": "[crio]\nroot = '/x'\n[crio.network]\nnetwork_dir = '/net.d/'\nplugin_dirs = ['/opt/cni/bin/', '/usr/lib/cni']\n"},
			[]string{"/opt/cni/bin", "/usr/lib/cni"}, "plugin_dirs in DIR/crio.conf", "/net.d", ""},
		"by name, the last one counts": {files{
			"crio.conf":           "[crio.network]\nplugin_dirs = ['/main']\nnetwork_dir = '/main.d'\n",
			"crio.conf.d/20.conf": "[crio.network]\nplugin_dirs = ['/20']\ncni_default_network = 'pods'\n",
			"crio.conf.d/10.conf": "[crio.network]\nplugin_dirs = ['/10']\n"}, []string{"/20"}, "plugin_dirs in DIR/crio.conf.d/20.conf", "/main.d", "pods"},
		"the key of before": {files{"crio.conf": "[crio.network]\nplugin_dir = '/old'\n"}, []string{DefaultBinDir, "/old"}, byDefault, DefaultConfDir, ""},
		"nothing":           {files{"crio.conf": "[crio.network]\nplugin_dirs = []\n"}, []string{DefaultBinDir}, byDefault, DefaultConfDir, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := plant(t, test.files)
			r, err := crio(filepath.Join(dir, "crio.conf"))
			must(t, err)
			if !reflect.DeepEqual(r.BinDirs, Dirs{test.bin, strings.ReplaceAll(test.binFrom, "DIR", dir)}) ||
				r.Conf() != test.conf || r.Network != test.network || r.Loopback || r.MaxConf != 1 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// Find finds all runtimes of a node: by their configuration, or by their program.
func TestFind(t *testing.T) {
	for name, test := range map[string]struct {
		files files
		want  string
	}{
		"none":              {files{"etc/hosts": ""}, ""},
		"by configuration":  {files{"etc/containerd/config.toml": debian12}, "containerd /usr/lib/cni"},
		"by program":        {files{"usr/bin/containerd": "", "usr/local/bin/crio": ""}, "containerd /opt/cni/bin, cri-o /opt/cni/bin"},
		"by a drop-in only": {files{"etc/crio/crio.conf.d/1": "[crio.network]\nplugin_dirs = ['/x']\n"}, "cri-o /x"},
		"several": {files{"etc/containerd/config.toml": debian12, "var/lib/rancher/k3s/agent/etc/containerd/config.toml": v3 + "bin_dirs = ['/k']\nconf_dir = '/kd'\n"},
			"containerd /usr/lib/cni, k3s /k"},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := Node{Host: plant(t, test.files)}.Find()
			must(t, err)
			var got []string
			for _, r := range all {
				got = append(got, r.Name+" "+strings.Join(r.BinDirs.Paths, ":"))
			}
			if strings.Join(got, ", ") != test.want {
				t.Errorf("found %q, not %q", got, test.want)
			}
		})
	}
}

// Read reads the runtime that its argument names, also with a configuration file of its own.
func TestRead(t *testing.T) {
	dir := plant(t, files{"etc/containerd/config.toml": debian12, "k0s.toml": v3 + "bin_dirs = ['/k0s']\n"})
	n := Node{Host: dir}
	for arg, want := range map[string]string{
		"containerd": "/usr/lib/cni", "containerd=" + dir + "/k0s.toml": "/k0s", "crio": DefaultBinDir, "cri-o": DefaultBinDir,
	} {
		r, err := n.Read(arg)
		if err != nil || r.BinDirs.Paths[0] != want {
			t.Errorf("%s: %+v, %v", arg, r, err)
		}
		if here := r.Name == "containerd"; n.Has(r) != here {
			t.Errorf("%s is on the node: %t", arg, !here)
		}
	}
	for arg, want := range map[string]string{
		"docker": `"docker" is no runtime that Berth knows: expected containerd, cri-o, k3s, rke2`, "k3s=/nix": "there is no /nix",
	} {
		if _, err := n.Read(arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

// Bin returns the folder from which the runtime takes a plugin.
func TestBin(t *testing.T) {
	dir := plant(t, files{"b/berth-cni": "", "c/berth-cni": "", "c/loopback": ""})
	r := Runtime{BinDirs: Dirs{Paths: []string{dir + "/a", dir + "/b", dir + "/c"}}}
	if got := r.Bin("berth-cni"); got != dir+"/b" {
		t.Error(got)
	}
	if got := r.Bin("other"); got != dir+"/a" {
		t.Error(got)
	}
	if !r.Has("loopback") || r.Has("other") {
		t.Error("Has")
	}
}

// What programs print differs with their builds.
func TestMajorOf(t *testing.T) {
	for out, want := range map[string]int{
		"containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3":                    1,
		"containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4e490e9fbdc236c0e811ccaba3376": 2,
		"containerd github.com/k3s-io/containerd v2.0.5-k3s1":                                            2,
		"nothing": 0,
	} {
		if got, err := majorOf(out); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v", out, got, err)
		}
	}
}

// The agent, which runs on each node for ever, links no parser of TOML.
func TestAgentLinksNoTOML(t *testing.T) {
	for program, want := range map[string]bool{"berth": true, "berthd": false, "berth-cni": false} {
		out, err := exec.Command("go", "list", "-deps", "github.com/berth-net/berth/cmd/"+program).Output()
		must(t, err)
		if got := strings.Contains(string(out), "go-toml"); got != want {
			t.Errorf("%s links go-toml: %t", program, got)
		}
	}
}
