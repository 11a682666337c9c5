package chained_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/kinds/shaping"
	"github.com/berth-net/berth/internal/mode/chained"
	"github.com/berth-net/berth/internal/nettest"
)

const prev = `{"cniVersion":"1.1.0","interfaces":[{"name":"veth1","mac":"02:00:00:00:00:01"},{"name":"eth0","mac":"02:00:00:00:00:02","sandbox":"/p"}],` +
	`"ips":[{"interface":1,"address":"10.1.0.2/24"},{"interface":0,"address":"10.1.0.1/24"}]}`

// world is what the mode sees.
type world struct {
	sight   shaping.Sight
	err     error
	claimed []nft.Mapping
	vacated []netip.Addr
	lacks   nft.Parts
}

func newWorld() *world {
	return &world{sight: shaping.Sight{
		Pod: rtnl.Link{Index: 2, Name: "eth0", MTU: 1400}, Host: rtnl.Link{Index: 12, Name: "veth1", MTU: 1400}, By: []int{12},
	}}
}

func (w *world) mode() *chained.Chained {
	return chained.New(chained.Options{
		Look: func(_ ns.Ref, _ string, addrs []netip.Addr) (shaping.Sight, error) { return w.sight, w.err },
		ClaimPorts: func(_ context.Context, _ hold.ID, ms []nft.Mapping) (func(), error) {
			w.claimed = slices.Clone(ms)
			return func() {}, nil
		},
		Vacate: func(_ context.Context, addrs []netip.Addr) error { w.vacated = addrs; return nil },
		Lacks:  func() nft.Parts { return w.lacks },
	})
}

func record() attachment.Record {
	return attachment.Record{Key: attachment.Key{Network: "n", ContainerID: "c", Ifname: "eth0"}, Mode: netconf.ModeChained, PrevResult: json.RawMessage(prev)}
}

var (
	port  = netconf.Port{Protocol: "tcp", Host: 8080, Container: 80}
	limit = netconf.Bandwidth{Ingress: netconf.Rate{Rate: 8_000_000, Burst: 800_000}}
)

// A plan has the link that the kernel shows, the limits, and the ports, which are bound to the link. It has names for the ports alone. The
// result is prevResult.
func TestPlan(t *testing.T) {
	w := newWorld()
	m := w.mode()
	c := &netconf.Conf{Ports: []netconf.Port{port}, Bandwidth: limit}
	nettest.Must(t, m.Fit(record(), c))
	o, _, err := m.Plan(t.Context(), hold.NewID(), record(), c)
	nettest.Must(t, err)
	s := o.Holds[0].Spec.(*shaping.Spec)
	if s.Link != "veth1" || s.Index != 12 || s.MTU != 1400 || s.Ingress.Rate != 1_000_000 || s.Egress.Rate != 0 {
		t.Errorf("its link is %+v", s)
	}
	ports := o.Holds[1].Spec.(*hostports.Spec).Mappings
	if len(ports) != 1 || ports[0].Via != 12 || ports[0].Pod.String() != "10.1.0.2:80" || len(w.claimed) != 1 || len(w.vacated) != 1 {
		t.Errorf("its ports are %v; claimed %v, vacated %v", ports, w.claimed, w.vacated)
	}
	if len(o.Names) != 1 || o.Names[0] != hostports.Name(ports[0]) {
		t.Errorf("its names are %v", o.Names)
	}
	face, err := m.Interface(o)
	nettest.Must(t, err)
	if face.MAC != "02:00:00:00:00:02" || face.Host != "veth1" || len(face.Addresses) != 1 || face.Ports[0].Via != 0 {
		t.Errorf("its interface is %+v", face)
	}
	r, err := m.Result(o, record())
	nettest.Must(t, err)
	if len(r.IPs) != 2 || len(r.Interfaces) != 2 {
		t.Errorf("its result is %+v", r)
	}
}

// The ports of a pod behind a bridge are bound to the bridge and to the port of it that leads to the pod.
func TestPlanBehindBridge(t *testing.T) {
	w := newWorld()
	w.sight.By, w.sight.Host.Master = []int{4}, 4
	o, _, err := w.mode().Plan(t.Context(), hold.NewID(), record(), &netconf.Conf{Ports: []netconf.Port{port}})
	nettest.Must(t, err)
	ports := o.Holds[1].Spec.(*hostports.Spec).Mappings
	if len(ports) != 1 || ports[0].Via != 4 || ports[0].BridgePort != 12 {
		t.Errorf("its ports are %v", ports)
	}
	face, err := w.mode().Interface(o)
	nettest.Must(t, err)
	if face.Ports[0].Via != 0 || face.Ports[0].BridgePort != 0 {
		t.Errorf("its interface is %+v", face)
	}
}

// What the node cannot do for the interface is refused with the reason. An interface without an end on the node can be had without ports
// and limits.
func TestFit(t *testing.T) {
	macvlan := func(w *world) { w.sight.Host, w.sight.By = rtnl.Link{}, []int{3} }
	for _, tt := range []struct {
		name string
		edit func(*world)
		conf netconf.Conf
		prev string
		want string
	}{
		{"macvlan alone", macvlan, netconf.Conf{}, prev, ""},
		{"macvlan with a limit", macvlan, netconf.Conf{Bandwidth: limit}, prev, "no end on the node"},
		{"macvlan with a port", macvlan, netconf.Conf{Ports: []netconf.Port{port}}, prev, "no end on the node"},
		{"a bridge with a port", func(w *world) { w.sight.By = []int{4} }, netconf.Conf{Ports: []netconf.Port{port}}, prev, "but by link 4"},
		{"a bridge of another link with a port", func(w *world) { w.sight.By, w.sight.Host.Master = []int{4}, 5 }, netconf.Conf{Ports: []netconf.Port{port}}, prev, "but by link 4"},
		{"its bridge with a port", func(w *world) { w.sight.By, w.sight.Host.Master = []int{4}, 4 }, netconf.Conf{Ports: []netconf.Port{port}}, prev, ""},
		{"its bridge with a port, and no table for it", func(w *world) { w.sight.By, w.sight.Host.Master, w.lacks = []int{4}, 4, nft.Bridges },
			netconf.Conf{Ports: []netconf.Port{port}}, prev, "no nftables of family bridge"},
		{"no way", func(w *world) { w.sight.By = []int{0} }, netconf.Conf{Ports: []netconf.Port{port}}, prev, "but by no link"},
		{"another family", func(*world) {}, netconf.Conf{Ports: []netconf.Port{{Protocol: "tcp", Host: 1, Container: 1, HostIP: netip.IPv6Unspecified()}}}, prev, "no address of its family"},
		{"a small burst", func(*world) {}, netconf.Conf{Bandwidth: netconf.Bandwidth{Ingress: netconf.Rate{Rate: 8, Burst: 8}}}, prev, "ingressBurst"},
		{"another interface", func(*world) {}, netconf.Conf{}, strings.ReplaceAll(prev, "eth0", "eth7"), "no interface eth0"},
		{"an old result", func(*world) {}, netconf.Conf{}, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}]}`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, r := newWorld(), record()
			tt.edit(w)
			r.PrevResult = json.RawMessage(tt.prev)
			err := w.mode().Fit(r, &tt.conf)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("says %v, want %q", err, tt.want)
			}
			if e, ok := err.(*api.Error); err != nil && (!ok || e.Code != cni.CodeConfig) {
				t.Errorf("%v has not the number %d", err, cni.CodeConfig)
			}
		})
	}
}
