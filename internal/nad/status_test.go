package nad_test

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/berth-net/berth/internal/cni/result"
	"github.com/berth-net/berth/internal/nad"
)

// of reads ADD's result in a version.
func of(t *testing.T, version, text string) *types100.Result {
	t.Helper()
	r, e := result.Parse([]byte(text), version)
	if e != nil {
		t.Fatal(e)
	}
	return r
}

// The texts are what Multus 4.2.2 writes for these results, by its source (nadutils.CreateNetworkStatuses and
// SetNetworkStatus), unless a case says otherwise.
func TestStatus(t *testing.T) {
	for _, c := range []struct {
		what     string
		attached func(*testing.T) []nad.Attached
		want     string
	}{
		{"none", func(*testing.T) []nad.Attached { return nil }, `[]`},
		{"bridge as the default network, and macvlan", func(t *testing.T) []nad.Attached {
			return []nad.Attached{
				{Network: "cbr0", Default: true, Result: of(t, "1.1.0", `{"interfaces":[{"name":"cni0","mac":"0a:00:00:00:00:01"},{"name":"veth1","mac":"0a:00:00:00:00:02"},
					{"name":"eth0","mac":"0a:00:00:00:00:03","mtu":1450,"sandbox":"/run/netns/x"}],
					"ips":[{"interface":2,"address":"10.244.1.73/24","gateway":"10.244.1.1"},{"interface":2,"address":"fd00::49/64"}],
					"routes":[{"dst":"10.0.0.0/8"},{"dst":"0.0.0.0/0","gw":"10.244.1.1"},{"dst":"::/0","gw":"fd00::1"}],
					"dns":{"nameservers":["10.96.0.10"],"domain":"d","search":["ns.svc","svc"],"options":["ndots:5"]}}`)},
				{Network: "ns/macvlan-conf", Result: of(t, "1.0.0", `{"interfaces":[{"name":"net1","mac":"86:1d:96:ff:55:0d","sandbox":"/run/netns/x"}],
					"ips":[{"interface":0,"address":"192.168.1.205/24","gateway":"192.168.1.1"}],"dns":{}}`)},
			}
		}, `[{
    "name": "cbr0",
    "interface": "eth0",
    "ips": [
        "10.244.1.73",
        "fd00::49"
    ],
    "mac": "0a:00:00:00:00:03",
    "mtu": 1450,
    "default": true,
    "dns": {
        "nameservers": [
            "10.96.0.10"
        ],
        "domain": "d",
        "search": [
            "ns.svc",
            "svc"
        ],
        "options": [
            "ndots:5"
        ]
    },
    "gateway": [
        "10.244.1.1",
        "fd00::1"
    ]
},{
    "name": "ns/macvlan-conf",
    "interface": "net1",
    "ips": [
        "192.168.1.205"
    ],
    "mac": "86:1d:96:ff:55:0d",
    "dns": {}
}]`},
		{"a device, without addresses", func(t *testing.T) []nad.Attached {
			return []nad.Attached{{
				Network: "ns/sriov", Result: of(t, "1.0.0", `{"interfaces":[{"name":"net1","mac":"02:00:00:00:00:01","sandbox":"/n"}]}`),
				Device: &nadv1.DeviceInfo{Type: "pci", Version: "1.1.0", Pci: &nadv1.PciDevice{PciAddress: "0000:03:02.1"}},
			}}
		}, `[{
    "name": "ns/sriov",
    "interface": "net1",
    "mac": "02:00:00:00:00:01",
    "dns": {},
    "device-info": {
        "type": "pci",
        "version": "1.1.0",
        "pci": {
            "pci-address": "0000:03:02.1"
        }
    }
}]`},
		{"several interfaces in the pod: the default one has the gateway, and the last what names none", func(t *testing.T) []nad.Attached {
			return []nad.Attached{{Network: "n", Default: true, Result: of(t, "1.1.0", `{"interfaces":[{"name":"host"},{"name":"a","sandbox":"/n"},{"name":"b","sandbox":"/n","mtu":9000},{"name":"c","sandbox":"/n"}],
				"ips":[{"interface":1,"address":"10.0.0.1/24"},{"interface":2,"address":"10.0.1.1/24","gateway":"10.0.1.254"},{"interface":0,"address":"10.0.2.1/24"},{"address":"10.0.3.1/24"}]}`)}}
		}, `[{
    "name": "n",
    "interface": "a",
    "ips": [
        "10.0.0.1"
    ],
    "dns": {}
},{
    "name": "n",
    "interface": "b",
    "ips": [
        "10.0.1.1"
    ],
    "mtu": 9000,
    "default": true,
    "dns": {}
},{
    "name": "n",
    "interface": "c",
    "ips": [
        "10.0.3.1"
    ],
    "dns": {}
}]`},
		{"several interfaces in the pod, without gateways", func(t *testing.T) []nad.Attached {
			return []nad.Attached{{Network: "n", Default: true, Result: of(t, "1.1.0", `{"interfaces":[{"name":"a","sandbox":"/n"},{"name":"b","sandbox":"/n"}]}`)}}
		}, `[{
    "name": "n",
    "interface": "a",
    "default": true,
    "dns": {}
},{
    "name": "n",
    "interface": "b",
    "dns": {}
}]`},
		{"one interface without a sandbox", func(t *testing.T) []nad.Attached {
			return []nad.Attached{{Network: "n", Default: true, Result: of(t, "0.3.1", `{"interfaces":[{"name":"x","mac":"02:00:00:00:00:01"}],"ips":[{"version":"4","interface":0,"address":"10.244.196.152/32"}]}`)}}
		}, `[{
    "name": "n",
    "ips": [
        "10.244.196.152"
    ],
    "default": true,
    "dns": {}
}]`},
		// The specification (section 5.1.1) wants an entry; Multus since 4.2 writes none.
		{"a result of version 0.2.0, and none at all", func(t *testing.T) []nad.Attached {
			return []nad.Attached{{Network: "old", Result: of(t, "0.2.0", `{"ip4":{"ip":"10.0.0.5/24","routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"}]}}`)}, {Network: "ns/none"}}
		}, `[{
    "name": "old",
    "ips": [
        "10.0.0.5"
    ],
    "dns": {},
    "gateway": [
        "10.0.0.1"
    ]
},{
    "name": "ns/none",
    "dns": {}
}]`},
		// The specification (section 5.3.3.1) wants an entry without the node's addresses; Multus writes none.
		{"only interfaces of the node", func(t *testing.T) []nad.Attached {
			return []nad.Attached{{Network: "n", Result: of(t, "1.0.0", `{"interfaces":[{"name":"br0"},{"name":"veth0"}],"ips":[{"interface":0,"address":"10.0.0.1/24"},{"address":"10.0.0.2/24"}]}`)}}
		}, `[{
    "name": "n",
    "ips": [
        "10.0.0.2"
    ],
    "dns": {}
}]`},
		// Multus writes "<nil>" for the first route, and takes the second for a default route.
		{"routes without gateways, and to half of all", func(t *testing.T) []nad.Attached {
			return []nad.Attached{{Network: "n", Result: of(t, "1.0.0", `{"interfaces":[{"name":"net1","sandbox":"/n"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"0.0.0.0/1","gw":"10.0.0.1"}]}`)}}
		}, `[{
    "name": "n",
    "interface": "net1",
    "dns": {}
}]`},
		// Multus marks none as the default one.
		{"the gateway is an interface's of the node", func(t *testing.T) []nad.Attached {
			return []nad.Attached{{Network: "n", Default: true, Result: of(t, "1.0.0", `{"interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/n"}],"ips":[{"interface":0,"address":"10.0.0.1/24","gateway":"10.0.0.254"}]}`)}}
		}, `[{
    "name": "n",
    "interface": "eth0",
    "default": true,
    "dns": {}
}]`},
	} {
		got, e := nad.Status(c.attached(t))
		if e != nil || got != c.want {
			t.Errorf("%s: %v\n got %s\nwant %s", c.what, e, got, c.want)
		}
		var back []nadv1.NetworkStatus
		if err := json.Unmarshal([]byte(got), &back); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// A result that a delegate printed may have anything in it.
func TestStatusOfOddResults(t *testing.T) {
	minus, many := -1, 7
	cidr := net.IPNet{IP: net.IPv4(10, 0, 0, 1), Mask: net.CIDRMask(24, 32)}
	got, e := nad.Status([]nad.Attached{{Network: "n", Default: true, Result: &types100.Result{
		Interfaces: []*types100.Interface{nil, {Name: "a", Sandbox: "/n"}},
		IPs:        []*types100.IPConfig{nil, {Interface: &minus, Address: cidr}, {Interface: &many, Address: cidr, Gateway: cidr.IP}, {Address: cidr}},
	}}, {Network: "o", Result: &types100.Result{IPs: []*types100.IPConfig{nil}, Interfaces: []*types100.Interface{nil}}}})
	const want = `[{
    "name": "n",
    "interface": "a",
    "ips": [
        "10.0.0.1",
        "10.0.0.1"
    ],
    "default": true,
    "dns": {}
},{
    "name": "o",
    "dns": {}
}]`
	if e != nil || got != want {
		t.Errorf("%v\n got %s\nwant %s", e, got, want)
	}
	long := &types100.Result{Interfaces: []*types100.Interface{{Name: strings.Repeat("x", 256<<10), Sandbox: "/n"}}}
	if _, e := nad.Status([]nad.Attached{{Network: "n", Result: long}}); e == nil || e.Code != 7 || !strings.Contains(e.Details, "the results of 1 networks make 262") {
		t.Errorf("%v", e)
	}
}
