package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kernel/wireguard"
	"github.com/berth-net/berth/internal/kernel/wireguard/wgtest"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/peers"
)

// keyed returns other(name, n, c) with the key of a number.
func keyed(name, n, c string, key byte) peers.Node {
	o := other(name, n, c)
	o.WireGuard = peers.WireGuard{PublicKey: keyOf(key), Port: 51820}
	return o
}

func keyOf(n byte) string { return wireguard.Secret{1, n}.Public() }

// hearing notes what the agent hearing the cluster.
type hearing struct {
	mu   sync.Mutex
	last peers.WireGuard
	fail error
}

func (k *hearing) tell(_ context.Context, wg peers.WireGuard) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fail == nil {
		k.last = wg
	}
	return k.fail
}

func (k *hearing) told() peers.WireGuard {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last
}

// seal has the rig's agent route by WireGuard.
func (r *rig) seal(k *hearing) {
	p := r.cluster.Peers
	p.Routing, p.WireGuard, p.Tell = config.RoutingWireGuard, config.WireGuard{Port: 51820}, k.tell
}

// device is the name of the rig's tunnel.
func (r *rig) device() string { return "berth-" + r.node.Instance[:4] }

// wantSealed waits until the tunnel has the peers of `want` ("KEY NUMBER to CIDR NUMBER"), their CIDRs' routes lead there, and those of
// closed lead nowhere.
func (r *rig) wantSealed(want []string, closed ...string) {
	r.t.Helper()
	var peersWanted, routes []string
	for _, w := range want {
		var key byte
		var c string
		_, err := fmt.Sscanf(w, "%d to %s", &key, &c)
		must(r.t, err)
		peersWanted = append(peersWanted, fmt.Sprintf("%s [10.244.%s.0/24 fd00:244:%s::/64]", keyOf(key), c, c))
		routes = append(routes, "10.244."+c+".0/24 "+r.device(), "fd00:244:"+c+"::/64 "+r.device())
		closed = append(closed, c)
	}
	for _, c := range closed {
		routes = append(routes, "10.244."+c+".0/24 unreachable", "fd00:244:"+c+"::/64 unreachable")
	}
	slices.Sort(peersWanted)
	slices.Sort(routes)
	nettest.Eventually(r.t, fmt.Sprint(peersWanted, routes), func() bool {
		var peersHad []string
		if len(want) > 0 {
			d, err := wireguard.Open(nil).Device(r.device())
			if err != nil {
				return false
			}
			for _, p := range d.Peers {
				peersHad = append(peersHad, fmt.Sprintf("%s %v", p.PublicKey, p.AllowedIPs))
			}
		}
		slices.Sort(peersHad)
		have := sealedRoutes(r.t)
		return slices.Equal(peersHad, peersWanted) && slices.Equal(have, routes)
	})
}

// sealedRoutes lists the routes to other nodes' pods, with the device that they lead to, or "unreachable".
func sealedRoutes(t testing.TB) (all []string) {
	for line := range strings.Lines(nettest.Snapshot(t, nil).Only("route").String()) {
		f := strings.Fields(line)
		i := slices.IndexFunc(f, func(s string) bool { return strings.Contains(s, "/") })
		if i < 0 || !strings.Contains(line, " proto 98 ") || strings.Contains(f[i], "244.7.") || strings.Contains(f[i], "244:7:") {
			continue
		}
		if !strings.HasPrefix(f[i], "10.244.") && !strings.HasPrefix(f[i], "fd00:244:") || strings.HasSuffix(f[i], "/32") || strings.HasSuffix(f[i], "/128") {
			continue
		}
		to := "unreachable"
		if d := slices.Index(f, "dev"); !strings.Contains(line, "unreachable") && d > 0 {
			to = f[d+1]
		}
		all = append(all, f[i]+" "+to)
	}
	slices.Sort(all)
	return all
}

// Nodes come, without a key at first, with another node's, and with another one, and go. The peers of the tunnel and the routes follow;
// packets for pods that nobody may be sent go nowhere. The tunnel is put right, outlives the agent, and changes its key with its file.
func TestWireGuard(t *testing.T) {
	segment(t)
	r := newRig(t, "default=10.244.7.0/24,fd00:244:7::/64")
	r.wire = wgtest.New(t, nil).Make
	r.begin()
	var cluster hearing
	cluster.fail = errors.New("the API server is away")
	r.seal(&cluster)
	stop := r.keepPeers()
	defer func() { stop() }()
	self := other("self", "1", "7")
	r.cluster.Peers.Self(self)
	r.cluster.Peers.All([]peers.Node{keyed("a", "11", "1", 1), other("b", "12", "2"), keyed("c", "13", "3", 1)})
	r.wantSealed([]string{"1 to 1"}, "2", "3")
	for name, says := range map[string]string{"b": "has told no WireGuard key", "c": "has the WireGuard key of node a"} {
		if err := r.cluster.Peers.Failed()[name]; err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", name, err, says)
		}
	}
	if l, err := r.node.Conn.Link(r.device()); err != nil || l.MTU != 1440 || r.ground.MTU() != 1440 {
		t.Errorf("the device has an MTU of %d bytes, pods %d: %v", l.MTU, r.ground.MTU(), err)
	}
	if o := r.cluster.Peers.Others(); o.TunnelPort != 51820 || o.Tunnels.String() != "[0.0.0.0/0 ::/0]" {
		t.Errorf("the table has the tunnel's port %d for %v alone", o.TunnelPort, o.Tunnels)
	}
	for c := range r.cluster.Peers.Others().Reached.Widest() { // answers to pods from nodes' own addresses would come by the tunnel, which takes none
		if !strings.Contains(c.String(), "244") {
			t.Errorf("pods' packets to %s keep the pods' addresses", c)
		}
	}
	cluster.mu.Lock()
	cluster.fail = nil
	cluster.mu.Unlock()
	secret, err := r.cluster.Peers.Secret()
	must(t, err)
	mine := peers.WireGuard{PublicKey: secret.Public(), Port: 51820}
	nettest.Eventually(t, "the cluster to know the key", func() bool { return cluster.told() == mine })
	if info, err := os.Stat(r.root.WireGuardKey()); err != nil || info.Mode() != 0o600 {
		t.Errorf("the private key's file: %v, %v", info, err)
	}
	r.wantClean()

	r.cluster.Peers.Put(keyed("b", "12", "2", 2))
	r.cluster.Peers.Put(keyed("a", "11", "1", 3)) // installed anew: c has the key alone now
	r.wantSealed([]string{"3 to 1", "2 to 2", "1 to 3"})
	moved := keyed("b", "22", "2", 2)
	r.cluster.Peers.Put(moved)
	nettest.Eventually(t, "the peer to have another endpoint", func() bool {
		d, err := wireguard.Open(nil).Device(r.device())
		return err == nil && slices.ContainsFunc(d.Peers, func(p wireguard.Peer) bool { return p.Endpoint == netip.MustParseAddrPort("192.0.2.22:51820") })
	})
	r.wantClean()

	watching, watched := context.WithCancel(t.Context())
	r.mend.Listen(r.drain.Waiting)
	ended := make(chan struct{})
	go func() { defer close(ended); r.mend.Keep(watching) }()
	for _, harm := range []string{"del " + r.device(), "set down dev " + r.device()} {
		nettest.Run(t, nil, "ip link "+harm)
		r.wantSealed([]string{"3 to 1", "2 to 2", "1 to 3"})
		nettest.Eventually(t, "the device to be up", func() bool { l, err := r.node.Conn.Link(r.device()); return err == nil && l.Up })
		r.wantClean()
	}
	watched()
	<-ended
	must(t, wireguard.Open(nil).RemovePeer(r.device(), keyOf(2)), wireguard.Open(nil).SetPeer(r.device(), wireguard.Peer{PublicKey: keyOf(99)}))
	r.Sweep(t.Context())
	r.Sweep(t.Context()) // what is nobody's goes when it is seen twice
	r.wantSealed([]string{"3 to 1", "2 to 2", "1 to 3"})

	// The next agent hears nothing of other nodes at first. Somebody has removed the file of the key.
	stop()
	must(t, os.Remove(r.root.WireGuardKey()))
	r.restart()
	r.seal(&cluster)
	stop = r.keepPeers()
	r.wantSealed([]string{"3 to 1", "2 to 2", "1 to 3"})
	self.WireGuard = mine
	r.cluster.Peers.Self(self)
	nettest.Eventually(t, "the cluster to know the new key", func() bool {
		secret, err := r.cluster.Peers.Secret()
		d, failed := wireguard.Open(nil).Device(r.device())
		return err == nil && failed == nil && secret.Public() != mine.PublicKey && cluster.told().PublicKey == secret.Public() && d.PublicKey == secret.Public()
	})
	r.cluster.Peers.All([]peers.Node{keyed("a", "11", "1", 3)})
	r.wantSealed([]string{"3 to 1"})
	r.wantClean()

	// The file of the key is damaged: the device and its peers go on, and the file stays.
	told := cluster.told()
	must(t, os.WriteFile(r.root.WireGuardKey(), []byte("secret words\n"), 0o600))
	r.cluster.Peers.All([]peers.Node{keyed("a", "11", "1", 3), keyed("d", "14", "4", 4), keyed("twin", "15", "5", 0)})
	r.wantSealed([]string{"3 to 1", "4 to 4", "0 to 5"})
	self.WireGuard = peers.WireGuard{} // somebody has removed the annotations
	r.cluster.Peers.Self(self)
	r.cluster.Peers.Put(peers.Node{Name: "twin", CIDRs: other("twin", "15", "5").CIDRs, Addresses: self.Addresses, WireGuard: told})
	nettest.Eventually(t, "a node with this one's key to be refused", func() bool {
		err := r.cluster.Peers.Failed()["twin"]
		return err != nil && strings.Contains(err.Error(), "this node's own WireGuard key")
	})
	r.wantSealed([]string{"3 to 1", "4 to 4"}, "5")
	if now := cluster.told(); now != told {
		t.Errorf("the cluster knows the key %v, and the device has %v", now, told)
	}
	if raw, err := os.ReadFile(r.root.WireGuardKey()); err != nil || string(raw) != "secret words\n" {
		t.Errorf("the file of the key has %q: %v", raw, err)
	}
}

// The routing changes from VXLAN to WireGuard, and back. The former tunnel goes, and nothing is left.
func TestWireGuardInstead(t *testing.T) {
	segment(t)
	r := newRig(t, "default=10.244.7.0/24,fd00:244:7::/64")
	r.wire = wgtest.New(t, nil).Make
	r.begin()
	r.cluster.Peers.Routing, r.cluster.Peers.VXLAN = config.RoutingVXLAN, config.VXLAN{VNI: 98, Port: 4789}
	stop := r.keepPeers()
	defer func() { stop() }()
	self, a := other("self", "1", "7"), keyed("a", "11", "1", 1)
	tell := func() { r.cluster.Peers.Self(self); r.cluster.Peers.All([]peers.Node{a}) }
	tell()
	conn, err := rtnl.Open(nil)
	must(t, err)
	defer conn.Close()
	throughVXLAN := func() bool {
		devices, err := conn.VXLANs()
		ways := []string{"10.244.1.0/24 " + r.device(), "fd00:244:1::/64 " + r.device()}
		return err == nil && len(devices) == 1 && slices.Equal(sealedRoutes(t), ways)
	}
	nettest.Eventually(t, "ways through VXLAN", throughVXLAN)
	var cluster hearing
	stop()
	r.restart()
	r.seal(&cluster)
	stop = r.keepPeers()
	r.wantSealed(nil, "1") // nobody has told anything yet
	tell()
	r.wantSealed([]string{"1 to 1"})
	r.wantClean()
	stop()
	r.restart()
	r.cluster.Peers.Routing, r.cluster.Peers.VXLAN = config.RoutingVXLAN, config.VXLAN{VNI: 98, Port: 4789}
	r.cluster.Peers.Tell = cluster.tell
	stop = r.keepPeers()
	self.WireGuard = cluster.told()
	tell()
	nettest.Eventually(t, "ways through VXLAN again", throughVXLAN)
	nettest.Eventually(t, "the cluster to hear that there is no key", func() bool { return cluster.told() == peers.WireGuard{} })
	r.wantClean()
}

// A kernel without WireGuard: the agent says so, sends nothing in clear, and attaches and detaches pods all the same.
func TestNoWireGuard(t *testing.T) {
	segment(t)
	conn, err := rtnl.Open(nil)
	must(t, err)
	defer conn.Close()
	switch err := conn.Do(rtnl.AddWireGuard("wg-probe", 1400)); {
	case err == nil:
		nettest.Run(t, nil, "ip link del wg-probe")
		t.Skip("this kernel has WireGuard")
	case !errors.Is(err, kernel.ErrUnsupported):
		t.Fatal(err)
	}
	r := start(t, "default=10.244.7.0/24,fd00:244:7::/64")
	var cluster hearing
	r.seal(&cluster)
	defer r.keepPeers()()
	r.cluster.Peers.Self(other("self", "1", "7"))
	r.cluster.Peers.All([]peers.Node{keyed("a", "11", "1", 1)})
	r.wantSealed(nil, "1")
	nettest.Eventually(t, "the agent to say that the kernel has no WireGuard", func() bool {
		err := r.cluster.Peers.Failed()["a"]
		return err != nil && strings.Contains(err.Error(), "this node's kernel has no WireGuard")
	})
	if wg := cluster.told(); wg != (peers.WireGuard{}) {
		t.Errorf("the cluster hears of a device that is not there: %+v", wg)
	}
	r.add(request("c", nettest.Pod(t)))
	r.del("c", true)
	r.wantClean()
}
