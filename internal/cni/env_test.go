package cni_test

import (
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
)

func TestChecks(t *testing.T) {
	long := strings.Repeat("a", 128)
	for _, c := range []struct {
		name      string
		check     func(string) *api.Error
		code      uint
		good, bad []string
	}{
		{"container id", cni.CheckContainerID, 4, []string{"a", "0", "A-b_c.9", long},
			[]string{"", "-a", ".a", "_a", "a/b", "../a", "a b", "a\x00", "é", "a\n", long + "a"}},
		{"network name", cni.CheckNetworkName, 7, []string{"a", "k8s-pod.network"}, []string{"", "a/b", long + "a"}},
		{"ifname", cni.CheckIfname, 4, []string{"eth0", "é", "a.b", "...", "123456789012345", "lo0"},
			[]string{"", ".", "..", "a/b", "a:b", "a b", "a\tb", "a\u00a0b", "a\u0085", "eth%d", "a\x00", "a\x7f", "\xff", "lo", "all", "default", "1234567890123456"}},
		{"new ifname", cni.CheckNewIfname, 4, []string{"eth0", "é", "日本語eth", "a\u200bb"}, []string{"", "à", "Ꮐ\u13a0", "a b", "a\u00a0b"}},
		{"netns path", cni.CheckNetnsPath, 4, []string{"/run/netns/a b", "/proc/1/ns/net", "/" + strings.Repeat("a", 4094)},
			[]string{"", "netns", "./a", "/a\x00b", "/" + strings.Repeat("a", 4095)}},
	} {
		for _, s := range c.good {
			if e := c.check(s); e != nil {
				t.Errorf("%s %.50q: %v", c.name, s, e)
			}
		}
		for _, s := range c.bad {
			if e := c.check(s); e == nil || e.Code != c.code || !utf8.ValidString(e.Details) {
				t.Errorf("%s %.50q: %v, want code %d", c.name, s, e, c.code)
			}
		}
	}
}

func TestParseArgs(t *testing.T) {
	for raw, want := range map[string]*api.Pod{
		"":                                nil,
		"IgnoreUnknown=1":                 nil,
		"IgnoreUnknown=True;FOO=bar":      nil,
		"FOO=a=b;IgnoreUnknown=1":         nil,
		"FOO=;IgnoreUnknown=1":            nil,
		"K8S_POD_INFRA_CONTAINER_ID=":     nil,
		"K8S_POD_NAME=p":                  {Name: "p"},
		"IgnoreUnknown=0;K8S_POD_NAME=p1": {Name: "p1"},
		"IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=c;K8S_POD_UID=u": {Namespace: "ns", Name: "p", UID: "u", InfraContainer: "c"},
	} {
		got, e := cni.ParseArgs(raw)
		if e != nil || !reflect.DeepEqual(got.Pod, want) {
			t.Errorf("%q: %+v, %v, want %+v", raw, got.Pod, e, want)
		}
	}
	for _, raw := range []string{
		"FOO", ";", "A=1;", "=1", "FOO=bar", "IgnoreUnknown=0;FOO=bar", "IgnoreUnknown=yes", "IgnoreUnknown=1;FOO",
		"K8S_POD_NAME=a;K8S_POD_NAME=b", "IgnoreUnknown=1;IgnoreUnknown=1", "K8S_POD_NAME=a\x1b[2J", "K8S_POD_NAME=\xff", "\xff=1;IgnoreUnknown=1",
		"K8S_POD_NAME=" + strings.Repeat("a", 254), "K8S_POD_UID=" + strings.Repeat("a", 129),
		"IgnoreUnknown=1;A=" + strings.Repeat("a", 16<<10), strings.Repeat("k", 129) + "=1;IgnoreUnknown=1",
	} {
		if got, e := cni.ParseArgs(raw); e == nil || e.Code != 4 || !strings.Contains(e.Details, "CNI_ARGS") || !utf8.ValidString(e.Details) || len(e.Details) > 400 {
			t.Errorf("%.60q: %+v, %v, want code 4", raw, got.Pod, e)
		}
	}
}

func FuzzParseArgs(f *testing.F) {
	for _, s := range []string{"", ";", "=", "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;A=b=c", "K8S_POD_UID=\x00", "IgnoreUnknown=TRUE;;", "K8S_POD_NAME=\u202e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		a, e := cni.ParseArgs(raw)
		if e != nil {
			if e.Code != 4 || e.Details == "" {
				t.Fatalf("error %+v", e)
			}
			return
		}
		if a.Pod != nil && (*a.Pod == (api.Pod{}) || len(a.Pod.Name) > 253 || !utf8.ValidString(a.Pod.Name) || strings.ContainsAny(a.Pod.Name, ";\n\x1b")) {
			t.Fatalf("accepted %+v", a.Pod)
		}
	})
}

func TestParseGC(t *testing.T) {
	for keys, want := range map[string][]api.GCValid{
		`"cni.dev/valid-attachments":null`: {},
		`"cni.dev/valid-attachments":[]`:   {},
		`"cni.dev/attachments":null`:       {},
		`"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"},{"containerID":"b","ifname":"eth1","more":1}]`:          {{ContainerID: "a", Ifname: "eth0"}, {ContainerID: "b", Ifname: "eth1"}},
		`"cni.dev/attachments":[{"containerID":"old","ifname":"e"}]`:                                                              {{ContainerID: "old", Ifname: "e"}},
		`"cni.dev/attachments":[],"cni.dev/valid-attachments":[{"containerID":"a","ifname":"e"}]`:                                 {{ContainerID: "a", Ifname: "e"}},
		`"cni.dev/valid-attachments":[{"containerID":"a","ifname":"e"}],"cni.dev/attachments":[{"containerID":"b","ifname":"e"}]`: {{ContainerID: "a", Ifname: "e"}},
	} {
		got, e := cni.ParseGC([]byte(conf(keys)))
		if e != nil || got == nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v, want %v", keys, got, e, want)
		}
	}
	for _, c := range []struct {
		raw  string
		code uint
		want string
	}{
		{`{`, 6, "expected"},
		{conf(``), 7, "cni.dev/valid-attachments is missing"},
		{conf(`"cni.dev/valid-attachments":{}`), 7, "is {}; expected a list"},
		{conf(`"cni.dev/valid-attachments":[null]`), 7, "cni.dev/valid-attachments[0]"},
		{conf(`"cni.dev/valid-attachments":[{}]`), 7, `containerID is ""`},
		{conf(`"cni.dev/valid-attachments":[{"containerID":"a","ifname":"e"},{"containerID":"../a","ifname":"e"}]`), 7, "cni.dev/valid-attachments[1]"},
		{conf(`"cni.dev/valid-attachments":[{"containerID":"a"}]`), 7, `ifname is ""`},
		{conf(`"cni.dev/valid-attachments":[{"containerID":5,"ifname":"e"}]`), 7, "containerID is 5"},
		{conf(`"cni.dev/valid-attachments":[{"containerID":"a","ifname":[]}]`), 7, "ifname is []"},
	} {
		if got, e := cni.ParseGC([]byte(c.raw)); e == nil || e.Code != c.code || !strings.Contains(e.Error(), c.want) {
			t.Errorf("%s: %v, %v, want %d %s", c.raw, got, e, c.code, c.want)
		} else if _, key, ok := strings.Cut(e.Msg, ": "); ok && strings.Contains(e.Details, key) {
			t.Errorf("%s: %q says %s twice", c.raw, e, key)
		}
	}
}

func FuzzParseGC(f *testing.F) {
	for _, s := range []string{``, conf(``), conf(`"cni.dev/valid-attachments":null`), conf(`"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]`), conf(`"cni.dev/attachments":[[]]`)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		valid, e := cni.ParseGC(raw)
		if e != nil {
			if e.Code != 6 && e.Code != 7 || e.Details == "" {
				t.Fatalf("error %+v", e)
			}
			return
		}
		for _, v := range valid {
			if cni.CheckContainerID(v.ContainerID) != nil || cni.CheckIfname(v.Ifname) != nil {
				t.Fatalf("accepted %+v", v)
			}
		}
	})
}
