package nad_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/nad"
)

var pod = nad.Pod{Namespace: "ns", Interface: "eth0"}

// selection is the one that asks for a name only, with changes.
func selection(namespace, name, ifname string, changes ...func(*nad.Selection)) nad.Selection {
	s := nad.Selection{Namespace: namespace, Name: name, Interface: ifname}
	for _, change := range changes {
		change(&s)
	}
	return s
}

func TestSelect(t *testing.T) {
	ip := netip.MustParseAddr
	one := func(change func(*nad.Selection)) []nad.Selection {
		return []nad.Selection{selection("ns", "a", "net1", change)}
	}
	plain := one(func(*nad.Selection) {})
	for annotation, want := range map[string][]nad.Selection{
		``:                  nil,
		`[]`:                {},
		`a`:                 plain,
		` a `:               plain,
		`[{"name":"a"}]`:    plain,
		` [ {"name":"a"} ]`: plain,
		`a,b`:               {selection("ns", "a", "net1"), selection("ns", "b", "net2")},
		"a,\n b@x , o/a":    {selection("ns", "a", "net1"), selection("ns", "b", "x"), selection("o", "a", "net3")},
		`a,a`:               {selection("ns", "a", "net1"), selection("ns", "a", "net2")},
		`o/a@mac.lan0`:      {selection("o", "a", "mac.lan0")},
		`o / a @ x`:         {selection("o", "a", "x")},
		`a.b-c.0`:           {selection("ns", "a.b-c.0", "net1")},
		`null`:              {selection("ns", "null", "net1")},
		`a@net2,b@net1`:     {selection("ns", "a", "net2"), selection("ns", "b", "net1")},
		`[{"name":"a","namespace":"","interface":"","ips":null,"ips2.x.org":[1],"mac":"","deviceID":"","default-route":null}]`: plain,
		`[{"name":"a","ips":[],"portMappings":[],"bandwidth":{},"cni-args":{},"infiniband-guid":""}]`:                          plain,
		`[{"name":"a","ips":["10.2.2.42/24","2001:DB8::5","10.2.2.43"]}]`: one(func(s *nad.Selection) {
			s.IPs = []nad.IP{{Addr: ip("10.2.2.42"), Bits: 24}, {Addr: ip("2001:db8::5"), Bits: -1}, {Addr: ip("10.2.2.43"), Bits: -1}}
		}),
		`[{"name":"a","mac":"02:23:45:67:89:AB"}]`: one(func(s *nad.Selection) { s.MAC = net.HardwareAddr{2, 0x23, 0x45, 0x67, 0x89, 0xab} }),
		`[{"name":"a","mac":"80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22"}]`: one(func(s *nad.Selection) {
			s.MAC = net.HardwareAddr{0x80, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0, 0x11, 0x22}
		}),
		`[{"name":"a","infiniband-guid":"c2:11:22:33:44:55:66:77"}]`: one(func(s *nad.Selection) {
			s.GUID = net.HardwareAddr{0xc2, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77}
		}),
		`[{"name":"a","portMappings":[{"hostPort":80,"containerPort":8080},{"hostPort":53,"containerPort":53,"protocol":"UDP","hostIP":"10.0.0.1"}]}]`: one(func(s *nad.Selection) {
			s.Ports = []netconf.Port{{Protocol: "tcp", Host: 80, Container: 8080}, {Protocol: "udp", HostIP: ip("10.0.0.1"), Host: 53, Container: 53}}
		}),
		`[{"name":"a","bandwidth":{"ingressRate":2048,"ingressBurst":1600,"egressRate":4096,"egressBurst":1700}}]`: one(func(s *nad.Selection) {
			s.Bandwidth = netconf.Bandwidth{Ingress: netconf.Rate{Rate: 2048, Burst: 1600}, Egress: netconf.Rate{Rate: 4096, Burst: 1700}}
		}),
		`[{"name":"a","deviceID":"0000:03:02.1"}]`:        one(func(s *nad.Selection) { s.DeviceID = "0000:03:02.1" }),
		`[{"name":"a","cni-args":{"k": [1, {"x":2e3}]}}]`: one(func(s *nad.Selection) { s.Args = json.RawMessage(`{"k": [1, {"x":2e3}]}`) }),
		`[{"name":"a","default-route":[]}]`:               one(func(s *nad.Selection) { s.DefaultRoute = []netip.Addr{} }),
		`[{"name":"a","default-route":["10.2.2.1","fe80::1"]}]`: one(func(s *nad.Selection) {
			s.DefaultRoute = []netip.Addr{ip("10.2.2.1"), ip("fe80::1")}
		}),
		`[{"name":"a","ipam-claim-reference":"vm.eth1"}]`: one(func(s *nad.Selection) { s.IPAMClaim = "vm.eth1" }),
		`[{"name":"a","default-route":["10.2.2.1"]},{"name":"b","default-route":["fe80::1"]}]`: {
			selection("ns", "a", "net1", func(s *nad.Selection) { s.DefaultRoute = []netip.Addr{ip("10.2.2.1")} }),
			selection("ns", "b", "net2", func(s *nad.Selection) { s.DefaultRoute = []netip.Addr{ip("fe80::1")} }),
		},
	} {
		got, e := nad.Select(annotation, pod)
		if e != nil {
			t.Errorf("%s: %v", annotation, e)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", annotation, got, want)
		}
	}
}

// Networks that each pod has come before those of the annotation.
func TestSelectBefore(t *testing.T) {
	after := nad.Pod{Namespace: "ns", Interface: "eth0", Before: 2}
	got, e := nad.Select("a@x,b", after)
	if want := []nad.Selection{selection("ns", "a", "x"), selection("ns", "b", "net4")}; e != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, e, want)
	}
	if _, e := nad.Select("a@net2", after); e == nil || !strings.Contains(e.Details, `"net2"; expected a name of its own: that one is a default network's`) {
		t.Errorf("%v", e)
	}
}

func TestSelectRefuses(t *testing.T) {
	element := func(keys string) string { return `[{"name":"ok"},{"name":"a",` + keys + `}]` }
	const label = "letters, digits"
	for _, c := range []struct {
		annotation string
		code       uint
		want       string // in the details
	}{
		{`[`, 6, "it is not a JSON list of networks: at byte 1"},
		{`{"name":"a"}`, 6, "expected an array"},
		{`[{"name":"a"}] x`, 6, "expected nothing more"},
		{`[{"name":"a"},]`, 6, "at byte 14"},
		{`a,"b"`, 6, "it is not a JSON list"},
		{`[{"name":"a"},null]`, 7, `element 2: it is null; expected an object`},
		{`[{"name":"a"},"b"]`, 7, `element 2: it is "b"; expected an object`},
		{`[{"name":"a","name":"b"}]`, 6, `key "name" appears twice`},
		{`[{}]`, 7, "element 1: name is missing"},
		{`[{"name":""}]`, 7, "element 1: name is missing"},
		{`[{"name":null}]`, 7, "element 1: name is missing"},
		{` `, 7, "element 1: name is missing"},
		{`a,`, 7, "element 2: name is missing"},
		{`a,,b`, 7, "element 2: name is missing"},
		{`a,b/c/d`, 7, `element 2: it is "b/c/d"; expected [namespace/]name[@interface]`},
		{`a@b@c`, 7, `element 1: it is "a@b@c"`},
		{`/a`, 7, `element 1: it is "/a"`},
		{`a@`, 7, `element 1: it is "a@"`},
		{"a\x00b", 7, "element 1: it is"},
		{"a,\xff", 7, "element 2: it is"},
		{`a,B`, 7, `element 2: name is "B"; expected a DNS-1123 name`},
		{`-a`, 7, `element 1: name is "-a"; expected`},
		{strings.Repeat("a", 254), 7, "element 1: name is"},
		{`n.s/a`, 7, `element 1: namespace is "n.s"; expected a DNS-1123 label`},
		{strings.Repeat("n", 64) + `/a`, 7, "element 1: namespace is"},
		{element(`"namespace":"N"`), 7, "element 2: namespace is \"N\"; expected a DNS-1123 label: at most 63 lower case " + label},
		{element(`"namespace":5`), 7, "element 2: namespace is 5; expected a string"},
		{`a@sixteen-letters0`, 7, `element 1: interface is "sixteen-letters0"; expected 1 to 15 bytes`},
		{`a@lo`, 7, `element 1: interface is "lo"`},
		{`a@x%d`, 7, `element 1: interface is "x%d"`},
		{element(`"interface":"a b"`), 7, `element 2: interface is "a b"`},
		{element(`"interface":"a/b"`), 7, `element 2: interface is "a/b"`},
		{element(`"interface":"eth0"`), 7, `element 2: interface is "eth0"; expected a name of its own: that one is the default network's`},
		{element(`"interface":"net1"`), 7, `element 2: interface is "net1"; expected a name of its own: that one is element 1's`},
		{`a@x,b,c@x`, 7, `element 3: interface is "x"; expected a name of its own: that one is element 1's`},
		{`a@net2,b`, 7, `element 2: interface is "net2" by its place; expected a name of its own: that one is element 1's`},
		{element(`"ips":"10.0.0.1"`), 7, `element 2: ips is "10.0.0.1"; expected a list`},
		{element(`"ips":["10.0.0.1","10.0.0.256"]`), 7, `element 2: ips is "10.0.0.256"; expected`},
		{element(`"ips":["10.0.0.1/33"]`), 7, `element 2: ips is "10.0.0.1/33"; expected`},
		{element(`"ips":["::ffff:10.0.0.1"]`), 7, `element 2: ips is`},
		{element(`"ips":["fe80::1%eth0"]`), 7, `element 2: ips is`},
		{element(`"ips":["224.0.0.1"]`), 7, `element 2: ips is`},
		{element(`"ips":[5]`), 7, `element 2: ips is 5; expected`},
		{element(`"ips":["10.0.0.1","10.0.0.1/24"]`), 7, `element 2: ips is "10.0.0.1/24"; expected each address once`},
		{element(`"ips":[` + strings.Repeat(`"10.0.0.1",`, 32) + `"10.0.0.2"]`), 7, `element 2: ips is`},
		{element(`"mac":"02:23"`), 7, `element 2: mac is "02:23"; expected`},
		{element(`"mac":"01:00:5e:00:00:01"`), 7, `element 2: mac is`},
		{element(`"mac":"00:00:00:00:00:00"`), 7, `element 2: mac is`},
		{element(`"mac":"02:00:00:00:00:00:00:01"`), 7, `element 2: mac is`},
		{element(`"mac":7`), 7, `element 2: mac is 7; expected a string`},
		{element(`"infiniband-guid":"02:23:45:67:89:AB"`), 7, `element 2: infiniband-guid is "02:23:45:67:89:AB"; expected 8 bytes`},
		{element(`"portMappings":[{"hostPort":0,"containerPort":1}]`), 7, `element 2: portMappings.hostPort is 0; expected a number from 1 to 65535`},
		{element(`"portMappings":[{"hostPort":1,"containerPort":1,"x":1}]`), 2, `element 2: "portMappings.x": 1; a mapping has`},
		{element(`"bandwidth":{"ingressRate":-1}`), 7, `element 2: bandwidth.ingressRate is -1; expected whole bits`},
		{element(`"bandwidth":{"egressRate":4096}`), 7, `element 2: bandwidth.egressBurst is missing`},
		{element(`"bandwidth":{"rate":1}`), 2, `element 2: "bandwidth.rate": 1`},
		{element(`"cni-args":[]`), 7, `element 2: cni-args is []; expected an object`},
		{element(`"deviceID":"a\u0007"`), 7, `element 2: deviceID is`},
		{element(`"default-route":"10.0.0.1"`), 7, `element 2: default-route is "10.0.0.1"; expected a list`},
		{element(`"default-route":["10.0.0.1/24"]`), 7, `element 2: default-route is "10.0.0.1/24"`},
		{element(`"default-route":["10.0.0.1","10.0.0.2"]`), 7, `element 2: default-route is "10.0.0.2"; expected a list of addresses of gateways, at most one of each family`},
		{`[{"name":"a","default-route":["10.0.0.1"]},{"name":"b","default-route":["fe80::1","10.0.0.2"]}]`, 7, "element 2: default-route is a second one for IPv4; expected one: element 1 has it already"},
		{`[{"name":"a","default-route":[]},{"name":"b","default-route":["fe80::1"]}]`, 7, "element 2: default-route is a second one for IPv6"},
		{element(`"ipam-claim-reference":"yo!"`), 7, `element 2: ipam-claim-reference is "yo!"`},
		{element(`"ipam-claim-reference":"c","ips":["10.0.0.1"]`), 7, `element 2: ipam-claim-reference is "c"; expected either ipam-claim-reference or ips`},
		{element(`"Mac":"02:23:45:67:89:AB"`), 2, `element 2: "Mac": "02:23:45:67:89:AB"; perhaps "mac" is meant`},
		{element(`"interfaceRequest":"x"`), 2, `element 2: "interfaceRequest": "x"; "interface" is its name`},
		{element(`"x":null`), 2, `element 2: "x": null; remove it`},
		{strings.Repeat("a,", 64) + "a", 7, "it has 65 networks; expected at most 64"},
		{strings.Repeat("a,", 199) + "a", 7, "it has 200 networks; expected at most 64"},
		{strings.Repeat("a", 64<<10+1), 7, "it has 65537 bytes; expected at most 65536"},
	} {
		got, e := nad.Select(c.annotation, pod)
		if e == nil {
			t.Errorf("%.100s: accepted as %+v", c.annotation, got)
		} else if e.Code != c.code || !strings.Contains(e.Details, c.want) || e.Msg != "invalid annotation k8s.v1.cni.cncf.io/networks" || got != nil {
			t.Errorf("%.100s: code %d, %v; want %d, %s", c.annotation, e.Code, e, c.code, c.want)
		}
	}
	var most []string
	for i := range nad.MaxNetworks {
		most = append(most, fmt.Sprintf("a%d", i))
	}
	if got, e := nad.Select(strings.Join(most, ","), pod); e != nil || len(got) != 64 || got[63].Interface != "net64" {
		t.Errorf("64 networks: %v", e)
	}
}

func TestSelectDefault(t *testing.T) {
	for annotation, want := range map[string]nad.Selection{
		`a`:                             selection("kube-system", "a", "eth0"),
		`o/a`:                           selection("o", "a", "eth0"),
		`a@eth0`:                        selection("kube-system", "a", "eth0"),
		`[{"name":"a","deviceID":"d"}]`: selection("kube-system", "a", "eth0", func(s *nad.Selection) { s.DeviceID = "d" }),
	} {
		if got, e := nad.SelectDefault(annotation, "kube-system", "eth0"); e != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%s: %+v, %v, want %+v", annotation, got, e, want)
		}
	}
	for annotation, want := range map[string]string{
		``:      "element 1: name is missing",
		`[]`:    "it has 0 elements; expected one",
		`a,b`:   "it has 2 elements; expected one",
		`a@x`:   `element 1: interface is "x"; expected the default network's, "eth0"`,
		`A`:     `element 1: name is "A"`,
		`[{"}]`: "it is not a JSON list",
	} {
		if got, e := nad.SelectDefault(annotation, "kube-system", "eth0"); e == nil || e.Msg != "invalid annotation v1.multus-cni.io/default-network" || !strings.Contains(e.Details, want) {
			t.Errorf("%s: %+v, %v, want %s", annotation, got, e, want)
		}
	}
}

// Each key of the client's type is read: a value of no key's type is refused as such, and not as unknown.
func TestClientKeys(t *testing.T) {
	element := reflect.TypeFor[nadv1.NetworkSelectionElement]()
	for i := range element.NumField() {
		key, _, _ := strings.Cut(element.Field(i).Tag.Get("json"), ",")
		if _, e := nad.Select(fmt.Sprintf(`[{%q: true}]`, key), pod); e == nil || e.Code != 7 || !strings.Contains(e.Details, "element 1: "+key+" is true; expected") {
			t.Errorf("%s: %v", key, e)
		}
	}
}
