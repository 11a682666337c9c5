package result_test

import (
	"encoding/json"
	"net"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/result"
	"github.com/berth-net/berth/internal/nettest"
)

func cidr(t testing.TB, s string) net.IPNet {
	t.Helper()
	n, err := types.ParseCIDR(s)
	nettest.Must(t, err)
	return *n
}

// dual returns a result such as the routed mode's.
func dual(t testing.TB) *types100.Result {
	return &types100.Result{
		Interfaces: []*types100.Interface{
			{Name: "babcdefghij2345", Mac: "02:00:00:00:00:01", Mtu: 1500},
			{Name: "eth0", Mac: "02:00:00:00:00:02", Mtu: 1500, Sandbox: "/run/netns/a"},
		},
		IPs: []*types100.IPConfig{
			{Interface: types100.Int(1), Address: cidr(t, "10.88.0.7/32"), Gateway: net.ParseIP("169.254.1.1")},
			{Interface: types100.Int(1), Address: cidr(t, "fd00::7/128"), Gateway: net.ParseIP("fe80::1")},
		},
		Routes: []*types.Route{
			{Dst: cidr(t, "0.0.0.0/0"), GW: net.ParseIP("169.254.1.1")},
			{Dst: cidr(t, "::/0"), GW: net.ParseIP("fe80::1")},
		},
		DNS: types.DNS{Nameservers: []string{"10.96.0.10"}},
	}
}

// Each version's encoding has what that version can say of the dual-stack result.
func TestEncodeEveryVersion(t *testing.T) {
	const (
		old = `{"cniVersion":"VERSION","ip4":{"ip":"10.88.0.7/32","gateway":"169.254.1.1","routes":[{"dst":"0.0.0.0/0","gw":"169.254.1.1"}]},` +
			`"ip6":{"ip":"fd00::7/128","gateway":"fe80::1","routes":[{"dst":"::/0","gw":"fe80::1"}]},"dns":{"nameservers":["10.96.0.10"]}}`
		middle = `{"cniVersion":"VERSION","dns":{"nameservers":["10.96.0.10"]},` +
			`"interfaces":[{"name":"babcdefghij2345","mac":"02:00:00:00:00:01"},{"name":"eth0","mac":"02:00:00:00:00:02","sandbox":"/run/netns/a"}],` +
			`"ips":[{"version":"4","interface":1,"address":"10.88.0.7/32","gateway":"169.254.1.1"},{"version":"6","interface":1,"address":"fd00::7/128","gateway":"fe80::1"}],` +
			`"routes":[{"dst":"0.0.0.0/0","gw":"169.254.1.1"},{"dst":"::/0","gw":"fe80::1"}]}`
		current = `{"cniVersion":"VERSION","dns":{"nameservers":["10.96.0.10"]},` +
			`"interfaces":[{"name":"babcdefghij2345","mac":"02:00:00:00:00:01","mtu":1500},{"name":"eth0","mac":"02:00:00:00:00:02","mtu":1500,"sandbox":"/run/netns/a"}],` +
			`"ips":[{"interface":1,"address":"10.88.0.7/32","gateway":"169.254.1.1"},{"interface":1,"address":"fd00::7/128","gateway":"fe80::1"}],` +
			`"routes":[{"dst":"0.0.0.0/0","gw":"169.254.1.1"},{"dst":"::/0","gw":"fe80::1"}]}`
	)
	form := map[string]string{"0.1.0": old, "0.2.0": old, "0.3.0": middle, "0.3.1": middle, "0.4.0": middle, "1.0.0": current, "1.1.0": current}
	for _, v := range cni.Versions() {
		r := dual(t)
		raw, e := result.Encode(r, v)
		if e != nil {
			t.Errorf("%s: %v", v, e)
			continue
		}
		if want := strings.Replace(form[v], "VERSION", v, 1); !sameJSON(t, string(raw), want) {
			t.Errorf("%s:\n got %s\nwant %s", v, raw, want)
		}
		if !reflect.DeepEqual(r, dual(t)) {
			t.Errorf("%s: the result was changed", v)
		}
		if _, err := create.Create(v, raw); err != nil {
			t.Errorf("%s: the CNI library does not read it: %v", v, err)
		}
		// And back: everything that the version could say is there.
		back, e := result.Parse(raw, v)
		if e != nil {
			t.Errorf("%s: %v", v, e)
			continue
		}
		if len(back.IPs) != 2 || len(back.Routes) != 2 || back.CNIVersion != "1.1.0" {
			t.Errorf("%s: came back as %+v", v, back)
		}
	}
	if _, e := result.Encode(dual(t), "2.0.0"); e == nil || e.Code != cni.CodeInternal {
		t.Errorf("2.0.0: %v", e)
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	nettest.Must(t, json.Unmarshal([]byte(a), &x))
	nettest.Must(t, json.Unmarshal([]byte(b), &y))
	return reflect.DeepEqual(x, y)
}

// The versions that package cni lists are those of the library.
func TestVersionsAreTheLibrarys(t *testing.T) {
	if got, want := cni.Versions(), version.All.SupportedVersions(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if cni.CurrentVersion != version.Current() {
		t.Errorf("current is %s, want %s", cni.CurrentVersion, version.Current())
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ version, raw, want string }{
		{"1.1.0", `null`, "expected an object"},
		{"1.1.0", `[]`, "expected an object"},
		{"1.1.0", `{"cniVersion":"0.4.0"}`, `its cniVersion is "0.4.0"`},
		{"1.1.0", `{"cniVersion":1}`, `its cniVersion is 1`},
		{"1.1.0", `{"interfaces":[null]}`, "one of its lists contains null"},
		{"0.4.0", `{"interfaces":[null]}`, "one of its lists contains null"},
		{"0.3.1", `{"ips":[null]}`, "one of its lists contains null"},
		{"1.0.0", `{"routes":[null]}`, "one of its lists contains null"},
		{"1.1.0", `{"ips":[{"address":"10.0.0.1/32","interface":0}]}`, "names interface 0, but the result lists only 0"},
		{"1.1.0", `{"ips":[{"address":"10.0.0.1/32","interface":-1}],"interfaces":[{}]}`, "names interface -1, but the result lists only 1"},
		{"1.1.0", `{"ips":[{"address":"10.0.0.1"}]}`, "invalid CIDR address"},
		{"1.1.0", `{"ips":{}}`, "cannot unmarshal object"},
		{"9.9.9", `{}`, "unsupported CNI result version"},
	} {
		r, e := result.Parse([]byte(c.raw), c.version)
		if e == nil {
			t.Errorf("%s %s: got %+v", c.version, c.raw, r)
		} else if e.Code != cni.CodeConfig || !strings.Contains(e.Details, c.want) {
			t.Errorf("%s %s: code %d, %q, want %q", c.version, c.raw, e.Code, e.Details, c.want)
		}
	}
}

// Every result that Parse returns can be encoded in every version that has interfaces.
func FuzzParse(f *testing.F) {
	for i, v := range cni.Versions() {
		raw, e := result.Encode(dual(f), v)
		if e != nil {
			f.Fatal(e)
		}
		f.Add(raw, uint8(i))
		f.Add([]byte(`{"interfaces":[null],"ips":[null],"routes":[null]}`), uint8(i))
		f.Add([]byte(`{"ip4":null,"ip6":{"ip":"10.0.0.1/8","routes":[{}]}}`), uint8(i))
		f.Add([]byte(`{"ips":[{"address":"::ffff:1.2.3.4/100","gateway":"x"}]}`), uint8(i))
		f.Add([]byte(`{"CNIVERSION":"0.2.0","routes":[{"dst":"0.0.0.0/0","table":-1,"scope":9}]}`), uint8(i))
	}
	f.Fuzz(func(t *testing.T, raw []byte, i uint8) {
		all := cni.Versions()
		r, e := result.Parse(raw, all[int(i)%len(all)])
		if e != nil {
			if e.Code != cni.CodeConfig || e.Details == "" {
				t.Fatalf("error %+v", e)
			}
			return
		}
		for _, v := range all[2:] {
			if _, e := result.Encode(r, v); e != nil {
				t.Fatalf("in %s: %v", v, e)
			}
		}
	})
}
