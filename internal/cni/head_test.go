package cni_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/cni"
)

const prev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[` +
	`{"name":"babcdefghij234x","sandbox":"/run/netns/a"},{"name":"cni0"},{"name":"babcdefghij2345","mac":"02:00:00:00:00:01"},{"name":"eth0","sandbox":"/run/netns/a"}],` +
	`"ips":[{"address":"10.88.0.7/24","interface":3},{"address":"fd88::7/128"},{"address":"10.0.0.1;x/24"},{"address":5},7,{"gateway":"10.88.0.1"}]}`

// ofPrev is the Head of a configuration with prev.
var ofPrev = cni.Head{Version: "1.1.0", Name: "net", Root: "/", HostVeth: "babcdefghij2345", Addresses: []string{"10.88.0.7", "fd88::7"}}

// conf makes a configuration of the keys. It adds cniVersion, name and type unless keys has
// them.
func conf(keys string) string {
	out := keys
	for _, d := range []string{`"cniVersion":"1.1.0"`, `"name":"net"`, `"type":"berth-cni"`} {
		if name, _, _ := strings.Cut(d, ":"); !strings.Contains(","+keys, ","+name) {
			out += "," + d
		}
	}
	return "{" + strings.TrimPrefix(out, ",") + "}"
}

func TestCheckVersion(t *testing.T) {
	for _, c := range []struct {
		verb, version string
		code          uint // 0: fine
	}{
		{"ADD", "0.1.0", 0}, {"ADD", "1.1.0", 0}, {"ADD", "", 1}, {"ADD", "1.1.1", 1},
		{"CHECK", "0.3.1", 1}, {"CHECK", "0.4.0", 0},
		{"GC", "1.0.0", 1}, {"GC", "1.1.0", 0}, {"STATUS", "1.0.0", 1}, {"STATUS", "1.1.0", 0},
	} {
		var code uint
		if e := cni.CheckVersion(c.verb, c.version); e != nil {
			code = e.Code
		}
		if code != c.code {
			t.Errorf("%s in %q: code %d, want %d", c.verb, c.version, code, c.code)
		}
	}
}

func TestParseHead(t *testing.T) {
	h, e := cni.ParseHead([]byte(conf(`"root":"/r","pool":"p","wait":true,"addWait":"5s","gcMinAge":"1h30m",` + prev)))
	want := ofPrev
	want.Root, want.Pool, want.Wait, want.AddWait, want.GCMinAge = "/r", "p", true, 5*time.Second, 90*time.Minute
	if e != nil || !reflect.DeepEqual(h, want) {
		t.Errorf("got %+v, %v, want %+v", h, e, want)
	}
	for keys, want := range map[string]bool{``: false, `"type":"loopback"`: true, `"type":"loopback2"`: false, `"type":5`: false} {
		h, e := cni.ParseHead([]byte(conf(keys)))
		d, err := cni.ParseDel([]byte(conf(keys)))
		if e != nil || err != nil || h.Loopback != want || d.Loopback != want {
			t.Errorf("%s: loopback is %t, for DEL %t; %v, %v", keys, h.Loopback, d.Loopback, e, err)
		}
	}
	for keys, want := range map[string]time.Duration{
		``: 2 * time.Second, `"addWait":null`: 2 * time.Second, `"addWait":""`: 2 * time.Second, `"addWait":"0s"`: 0, `"addWait":"1m"`: time.Minute,
	} {
		if h, e := cni.ParseHead([]byte(conf(keys))); e != nil || h.AddWait != want {
			t.Errorf("%q: ADD waits for %v, %v, want %v", keys, h.AddWait, e, want)
		}
	}
	for raw, code := range map[string]uint{
		conf(`"addWait":"2"`): 7, conf(`"addWait":"-1s"`): 7, conf(`"addWait":2`): 7,
		`x`: 6, conf(`"pool":"/"`): 7, conf(`"pool":1`): 7, conf(`"wait":"yes"`): 7, conf(`"gcMinAge":"1"`): 7, conf(`"name":""`): 7, conf(`"root":"x"`): 7,
	} {
		if _, e := cni.ParseHead([]byte(raw)); e == nil || e.Code != code {
			t.Errorf("%s: %v, want code %d", raw, e, code)
		}
	}
	// A whole plugin list, piped in by hand, is refused as such, whatever else it lacks.
	for _, raw := range []string{`{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"berth-cni"}]}`, `{"plugins":[],"cniVersion":"1.0.0"}`} {
		h, e := cni.ParseHead([]byte(raw))
		if e == nil || e.Code != 2 || !strings.Contains(e.Details, "this is a whole plugin list") || h.Version != "1.0.0" {
			t.Errorf("%s: version %q, %v", raw, h.Version, e)
		}
	}
	// An error is printed in the version that was asked for.
	if h, _ := cni.ParseHead([]byte(conf(`"cniVersion":"0.4.0","name":"/"`))); h.Version != "0.4.0" {
		t.Errorf("version %q of a bad name", h.Version)
	}
}

// DEL reads the keys that it needs, whatever is wrong with the others.
func TestParseDelIsLenient(t *testing.T) {
	for raw, want := range map[string]cni.Head{
		conf(`"cniVersion":"7.0.0"`): {Version: "7.0.0", Name: "net", Root: "/"},
		conf(`"wait":5,"pool":5,"addWait":5,"gcMinAge":5,"mtu":"x","unknown":1`): {Version: "1.1.0", Name: "net", Root: "/"},
		`{"name":"net"}`:                       {Version: "0.1.0", Name: "net", Root: "/"},
		conf(prev):                             ofPrev,
		conf(`"prevResult":5`):                 {Version: "1.1.0", Name: "net", Root: "/"},
		conf(`"prevResult":{"interfaces":{}}`): {Version: "1.1.0", Name: "net", Root: "/"},
		conf(`"prevResult":{"interfaces":[null,5,{"name":[],"sandbox":""},{"name":"b1bcdefghij2345"}]}`): {Version: "1.1.0", Name: "net", Root: "/"},
		conf(`"prevResult":{"ip4":{"ip":"10.0.0.1/32"}}`):                                                {Version: "1.1.0", Name: "net", Root: "/"},
		conf(`"prevResult":{"interfaces":[{"name":"babcdefghij2345","sandbox":5}]}`):                     {Version: "1.1.0", Name: "net", Root: "/"},
		conf(`"prevResult":{"interfaces":[{"name":"babcdefghij2345"}],"ips":{}}`):                        {Version: "1.1.0", Name: "net", Root: "/", HostVeth: "babcdefghij2345"},
		// What is unreadable within a key that DEL does not need.
		conf(`"prevResult":{"a":1,"a":2},"args":{"a":1,"a":2}`):             {Version: "1.1.0", Name: "net", Root: "/"},
		conf(`"prevResult":{"a":"\ud800"},"ipMasq":"\ud800"`):               {Version: "1.1.0", Name: "net", Root: "/"},
		conf("\"prevResult\":{\"a\":\"\xff\"},\"\xff\":5"):                  {Version: "1.1.0", Name: "net", Root: "/"},
		conf(prev + `,"prevResult":{},"wait":true,"args":1,"args":2`):       {Version: "1.1.0", Name: "net", Root: "/", Wait: true},
		conf(`"args":` + strings.Repeat("[", 99) + strings.Repeat("]", 99)): {Version: "1.1.0", Name: "net", Root: "/"},
		// Another plugin's address.
		conf(`"prevResult":{"interfaces":[{"name":"veth0"}],"ips":[{"address":"10.0.0.1/24"}]}`): {Version: "1.1.0", Name: "net", Root: "/"},
	} {
		if h, e := cni.ParseDel([]byte(raw)); e != nil || !reflect.DeepEqual(h, want) {
			t.Errorf("%s:\n got %+v, %v\nwant %+v", raw, h, e, want)
		}
	}
	// But DEL never guesses which attachment is meant.
	for raw, code := range map[string]uint{
		``: 6, conf(`"name":5`): 7, conf(`"name":"a b"`): 7, conf(`"cniVersion":5`): 7, conf(`"root":5`): 7, conf(`"root":"x"`): 7, conf("") + ",": 6,
		conf(`"name":"net","name":"net"`): 6, conf(`"root":"/a","root":"/b"`): 6, conf(`"name":"\ud800"`): 7,
	} {
		if h, e := cni.ParseDel([]byte(raw)); e == nil || e.Code != code {
			t.Errorf("%s: %+v, %v, want code %d", raw, h, e, code)
		}
	}
}

func FuzzParseDel(f *testing.F) {
	for _, s := range []string{``, conf(``), conf(prev), conf(`"prevResult":{"interfaces":[{"name":"b\u0061bcdefghij2345"}]}`), conf(`"prevResult":[[]]`)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, e := cni.ParseDel(raw)
		if e != nil {
			if e.Code != 6 && e.Code != 7 || e.Details == "" {
				t.Fatalf("error %+v", e)
			}
			return
		}
		if cni.CheckNetworkName(h.Name) != nil || !strings.HasPrefix(string(h.Root), "/") || h.HostVeth != "" && len(h.HostVeth) != 15 ||
			h.HostVeth == "" && h.Addresses != nil {
			t.Fatalf("accepted %+v", h)
		}
	})
}
