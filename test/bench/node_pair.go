package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// segmentLink is the name of a node's link to the segment.
const segmentLink = "seg0"

// nodePair is two nodes on one segment: network namespaces with a veth pair between them.
type nodePair struct {
	name  string
	nodes [2]*ns.Netns
	undo  []func() error
}

// nodeCIDRs and nodeAddrs are what the nodes of every pair have.
func nodeCIDRs(i int) []string {
	return []string{fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:244:%d::/64", i)}
}

func nodeAddrs(i int) []string {
	return []string{fmt.Sprintf("192.0.2.%d", i+1), fmt.Sprintf("2001:db8::%d", i+1)}
}

func newNodePair(name string) (*nodePair, error) {
	p := &nodePair{name: name}
	for i := range p.nodes {
		n, err := ns.New(filepath.Join("/run/netns", fmt.Sprintf("node-%s-%d", name, i)))
		if err != nil {
			return p, err
		}
		p.nodes[i] = n
		p.undo = append(p.undo, n.Delete)
	}
	if err := joined(p.nodes, segmentLink); err != nil {
		return p, err
	}
	for i, n := range p.nodes {
		if err := n.Do(func() error { return errors.Join(nettest.LoopbackUp(), addressed(segmentLink, nodeAddrs(i), 24, 64)) }); err != nil {
			return p, err
		}
	}
	return p, nil
}

// close ends whatever runs on the nodes, and the nodes.
func (p *nodePair) close() error {
	var err error
	for i := len(p.undo) - 1; i >= 0; i-- {
		err = errors.Join(err, p.undo[i]())
	}
	p.undo = nil
	return err
}

// joined is `ip link add NAME netns A type veth peer name NAME netns B`.
func joined(ends [2]*ns.Netns, name string) error {
	return ends[0].Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(ends[1].Fd()),
		})
	})
}

// addressed gives a link of the calling thread's namespace its addresses, and sets it up.
//
//	ip addr add ADDRESS dev NAME nodad; ip link set NAME up
func addressed(name string, addrs []string, v4, v6 int) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		ip, bits := net.ParseIP(a), v4
		if ip.To4() == nil {
			bits = v6
		}
		size := 8 * len(netip.MustParseAddr(a).AsSlice())
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(bits, size)}, Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("ip addr add %s/%d dev %s: %w", a, bits, name, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// newBareWay makes a veth pair between two pods, and no node.
func (b *bench) newBareWay() (*way, error) {
	ps, err := b.pods.fresh(2)
	if err != nil {
		return nil, err
	}
	var ends [2]*ns.Netns
	for i, p := range ps {
		if ends[i], err = p.ref.Open(); err != nil {
			return nil, err
		}
		defer ends[i].Close()
	}
	if err := joined(ends, ifname); err != nil {
		return nil, err
	}
	for i, n := range ends {
		if err := n.Do(func() error { return addressed(ifname, nodeAddrs(i), 24, 64) }); err != nil {
			return nil, err
		}
	}
	return wayBetween(bareWay, ps)
}

// peerWay attaches a pod on each node by a plugin, with host-local's addresses. then makes the rest on each node.
func (b *bench) peerWay(ctx context.Context, p *nodePair, name, plugin string, then ...func(own int) error) (*way, error) {
	ps, err := b.pods.fresh(2)
	if err != nil {
		return nil, err
	}
	for i, n := range p.nodes {
		state := filepath.Join(b.dir, "state-"+n.Ref().Path[len("/run/netns/"):])
		cidrs := nodeCIDRs(i)
		conf := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "bench", "plugins": [{%s, "ipam": {"type": "host-local", "dataDir": %q,
			"ranges": [[{"subnet": %q}], [{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}]}`, plugin, state, cidrs[0], cidrs[1])
		list, err := libcni.NetworkConfFromBytes([]byte(conf))
		if err != nil {
			return nil, err
		}
		net := &network{
			contestant: contestant{name: name}, list: list,
			cni: libcni.NewCNIConfigWithCacheDir([]string{b.opts.peers}, filepath.Join(state, "cache"), nil),
		}
		a := net.attachment(ps[i])
		err = n.Do(func() error { // libcni starts the plugin on this thread
			if _, err := a.add(ctx); err != nil {
				return err
			}
			for _, do := range then {
				if err := do(i); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		p.undo = append(p.undo, func() error { return n.Do(func() error { _, err := a.del(ctx); return err }) })
	}
	return wayBetween(name, ps)
}

// nativeWays leads a node to the other one's pods by that node's addresses.
//
//	ip route add CIDR via NODE dev seg0
func nativeWays(own int) error {
	link, err := netlink.LinkByName(segmentLink)
	if err != nil {
		return err
	}
	other := 1 - own
	for f, cidr := range nodeCIDRs(other) {
		_, dst, err := net.ParseCIDR(cidr)
		if err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Gw: net.ParseIP(nodeAddrs(other)[f])}); err != nil {
			return fmt.Errorf("ip route add %s: %w", cidr, err)
		}
	}
	return nil
}

const (
	tunnelVNI  = 1
	tunnelPort = 8472
	tunnelMTU  = 1450
)

// tunnelWays leads a node to the other one's pods as flannel does: by a VXLAN device that learns nothing, with a neighbour and a
// forwarding entry for the other node.
//
//	ip link add tunnel0 type vxlan id 1 dev seg0 local NODE dstport 8472 nolearning
//	ip neigh add GATEWAY lladdr MAC dev tunnel0 nud permanent; bridge fdb add MAC dev tunnel0 dst NODE
//	ip route add CIDR via GATEWAY dev tunnel0 onlink
func tunnelWays(own int) error {
	seg, err := netlink.LinkByName(segmentLink)
	if err != nil {
		return err
	}
	other := 1 - own
	mac := func(i int) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, byte(i + 1)} }
	node := func(i int) net.IP { return net.ParseIP(nodeAddrs(i)[0]) }
	tunnel := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: "tunnel0", MTU: tunnelMTU, HardwareAddr: mac(own)},
		VxlanId:   tunnelVNI, VtepDevIndex: seg.Attrs().Index, SrcAddr: node(own), Port: tunnelPort, Learning: false,
	}
	if err := netlink.LinkAdd(tunnel); err != nil {
		return fmt.Errorf("ip link add tunnel0 type vxlan: %w", err)
	}
	if err := netlink.LinkSetUp(tunnel); err != nil {
		return err
	}
	index := tunnel.Attrs().Index
	fdb := &netlink.Neigh{
		LinkIndex: index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF, IP: node(other), HardwareAddr: mac(other),
	}
	if err := netlink.NeighAppend(fdb); err != nil {
		return fmt.Errorf("bridge fdb add %s: %w", mac(other), err)
	}
	for _, cidr := range nodeCIDRs(other) {
		gateway, dst, err := net.ParseCIDR(cidr)
		if err != nil {
			return err
		}
		if err := netlink.NeighAdd(&netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, IP: gateway, HardwareAddr: mac(other)}); err != nil {
			return fmt.Errorf("ip neigh add %s: %w", gateway, err)
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: dst, Gw: gateway, Flags: int(netlink.FLAG_ONLINK)}); err != nil {
			return fmt.Errorf("ip route add %s: %w", cidr, err)
		}
	}
	return nil
}

// masquerade has a node masquerade what leaves the cluster.
func masquerade(int) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(`table inet leaving {
	chain post {
		type nat hook postrouting priority srcnat
		ip daddr 10.244.0.0/16 accept
		ip6 daddr fd00:244::/32 accept
		masquerade fully-random
	}
}
`)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft -f -: %w\n%s", err, out)
	}
	return nil
}

// berthWay runs an agent on each node, in a cluster of these two nodes, and attaches a pod by each.
func (b *bench) berthWay(ctx context.Context, p *nodePair, routing string) (*way, error) {
	server := newClusterAPI()
	p.undo = append(p.undo, func() error { server.close(); return nil })
	nodeName := func(i int) string { return fmt.Sprintf("node-%d", i) }
	for i := range p.nodes {
		server.Put("nodes", node(nodeName(i), nodeCIDRs(i), nodeAddrs(i)...))
	}
	ps, err := b.pods.fresh(2)
	if err != nil {
		return nil, err
	}
	for i, n := range p.nodes {
		root := filepath.Join(b.dir, p.name+"-"+nodeName(i))
		url, err := server.listen(n)
		if err == nil {
			err = inCluster(root, nodeName(i), url, "routing: "+routing)
		}
		if err != nil {
			return nil, err
		}
		var a *agent
		if err := n.Do(func() (err error) { a, err = startAgent(ctx, b.opts.bin, root, nil); return err }); err != nil {
			return nil, err
		}
		p.undo = append(p.undo, a.Stop)
		if err := a.attachSoon(ctx, ps[i], ""); err != nil {
			return nil, err
		}
	}
	return wayBetween("berth, "+routing, ps)
}

// wayBetween returns the way from a pod to another one, once packets go there and back.
func wayBetween(name string, ps []*pod) (*way, error) {
	w := &way{name: name, from: ps[0], to: ps[1]}
	var err error
	if w.addrs, err = ps[1].addresses(); err != nil {
		return nil, err
	}
	if len(w.addrs) != 2 {
		return nil, fmt.Errorf("%s: the pod has the addresses %s", name, w.addrs)
	}
	for _, a := range w.addrs {
		for end := time.Now().Add(opTimeout); ; time.Sleep(10 * time.Millisecond) {
			if _, err = w.turns(a, 1); err == nil {
				break
			}
			if time.Now().After(end) {
				return nil, fmt.Errorf("no packet gets to %s: %w", a, err)
			}
		}
	}
	return w, nil
}

// addresses returns the addresses of a pod's interface that others can reach, IPv4 first.
func (p *pod) addresses() (all []netip.Addr, err error) {
	n, err := p.ref.Open()
	if err != nil {
		return nil, err
	}
	defer n.Close()
	err = n.Do(func() error {
		link, err := netlink.LinkByName(ifname)
		if err != nil {
			return err
		}
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			addrs, err := netlink.AddrList(link, family)
			if err != nil {
				return err
			}
			for _, a := range addrs {
				if a.Scope == unix.RT_SCOPE_UNIVERSE {
					ip, _ := netip.AddrFromSlice(a.IP)
					all = append(all, ip.Unmap())
				}
			}
		}
		return nil
	})
	return all, err
}
