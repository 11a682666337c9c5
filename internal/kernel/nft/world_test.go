package nft

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// world is a node with pods, made without Berth, and a server beyond the node that has routes back to
// the node and all pods.
type world struct {
	t    *testing.T
	node *place
	all  []*place
	log  inbox
}

// place is a network namespace that sends and receives: the node, a pod or a server.
type place struct {
	name  string
	at    *ns.Netns
	link  netlink.Link // the node's end of its veth pair; nil for the node
	addrs []netip.Addr // IPv4, IPv6
}

// inbox collects the datagrams that arrived.
type inbox struct {
	mu   sync.Mutex
	seen map[string]netip.Addr // source by "TAG at PLACE"
}

const port = 4000

func newWorld(t *testing.T) *world {
	w := &world{t: t, node: &place{name: "node", at: nettest.Node(t)}}
	w.log.seen = map[string]netip.Addr{}
	w.inside(w.node.at, func() error {
		for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			if err := ns.SetSysctl(name, "1"); err != nil {
				return err
			}
		}
		return nil
	})
	w.all = []*place{w.node}
	return w
}

// add connects a place to the node as a pod is connected: by one veth pair, over which the place
// reaches everything, and with host addresses (/32 and /128) only.
func (w *world) add(name string, at *ns.Netns, v4, v6 string) *place {
	w.t.Helper()
	p := &place{name: name, at: at, addrs: []netip.Addr{netip.MustParseAddr(v4), netip.MustParseAddr(v6)}}
	inNode, inPlace := w.handle(w.node.at), w.handle(at)
	macs := []net.HardwareAddr{{2, 0, 0, 0, 1, byte(len(w.all))}, {2, 0, 0, 0, 2, byte(len(w.all))}}

	// ip link add NAME addr MAC type veth peer name eth0 addr MAC netns PLACE
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: name, HardwareAddr: macs[0]})
	veth.PeerName, veth.PeerHardwareAddr, veth.PeerNamespace = "eth0", macs[1], netlink.NsFd(at.Fd())
	must(w.t, inNode.LinkAdd(veth))
	p.link = w.up(inNode, name)
	w.up(inPlace, "lo")
	eth0 := w.up(inPlace, "eth0")
	for i, gateway := range []string{"169.254.1.1", "fe80::1"} {
		own, gw := p.addrs[i], netip.MustParseAddr(gateway)
		must(w.t, inPlace.AddrAdd(eth0, &netlink.Addr{IPNet: host(own), Flags: unix.IFA_F_NODAD}))
		w.neighbour(inPlace, eth0, gw, macs[0])
		must(w.t, inPlace.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: everything(i), Gw: gw.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}))
		w.neighbour(inNode, p.link, own, macs[1])
		must(w.t, inNode.RouteAdd(&netlink.Route{LinkIndex: p.link.Attrs().Index, Dst: host(own), Scope: netlink.SCOPE_LINK}))
	}
	w.all = append(w.all, p)
	w.listen(p)
	return p
}

// address gives the node an address on its end of a place's veth pair.
func (w *world) address(p *place, v4, v6 string) {
	w.t.Helper()
	w.node.addrs = []netip.Addr{netip.MustParseAddr(v4), netip.MustParseAddr(v6)}
	for _, addr := range w.node.addrs {
		must(w.t, w.handle(w.node.at).AddrAdd(p.link, &netlink.Addr{IPNet: host(addr), Flags: unix.IFA_F_NODAD}))
	}
	w.listen(w.node)
}

// group moves the node's end of a place's veth pair: ip link set NAME group GROUP
func (w *world) group(p *place, group uint32) {
	w.t.Helper()
	must(w.t, w.handle(w.node.at).LinkSetGroup(p.link, int(group)))
}

// listen records the datagrams that arrive at a place, until the test ends.
func (w *world) listen(p *place) {
	w.t.Helper()
	for _, addr := range p.addrs {
		nettest.Hear(w.t, p.at, "udp", netip.AddrPortFrom(addr, port).String(), func(_ net.PacketConn, packet []byte, from net.Addr) {
			w.log.mu.Lock()
			defer w.log.mu.Unlock()
			w.log.seen[string(packet)+" at "+p.name] = netip.MustParseAddrPort(from.String()).Addr().Unmap()
		})
	}
}

// send sends a datagram from a place to another, and returns its key in the inbox. It
// ignores the kernel's errors.
func (w *world) send(from, to *place, family int, tag string) string {
	w.t.Helper()
	text := fmt.Sprintf("%s: %s to %s by IPv%d", tag, from.name, to.name, []int{4, 6}[family])
	w.inside(from.at, func() error {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.addrs[family], port)))
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.Write([]byte(text))
		return nil
	})
	return text + " at " + to.name
}

// sendUntil sends datagrams both ways until done has a result, and returns the datagrams' keys.
func (w *world) sendUntil(a, b *place, done <-chan error) (keys []string) {
	w.t.Helper()
	for sent := 0; ; sent++ {
		keys = append(keys, w.send(a, b, 0, fmt.Sprint("out ", sent)), w.send(b, a, 1, fmt.Sprint("in ", sent)))
		select {
		case err := <-done:
			must(w.t, err)
			return keys
		default:
		}
	}
}

func (w *world) wantUnheard(keys []string) {
	w.t.Helper()
	for _, key := range keys {
		if _, ok := w.source(key); ok {
			w.t.Errorf("slipped through: %s", key)
		}
	}
}

// source returns the source address of a datagram that arrived.
func (w *world) source(key string) (netip.Addr, bool) {
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	from, ok := w.log.seen[key]
	return from, ok
}

// letter is a datagram that a place has sent, and that may be lost: a link that came up before its peer
// sends nothing until the kernel's linkwatch notices, some time later, that the link has a carrier
// (net/core/link_watch.c).
type letter struct {
	key    string // in the inbox
	should bool   // the datagram has to arrive
	again  func() // sends the datagram once more
}

// exchange lets every place send to every other place by both families, and returns what
// arrived, sorted. exchange repeats the datagrams that should arrive until they do. Then it waits a
// moment for datagrams that should not arrive.
func (w *world) exchange(tag string, should func(from, to *place) bool) []string {
	w.t.Helper()
	var all []letter
	for _, from := range w.all {
		for _, to := range w.all {
			for family := range 2 {
				if from == to {
					continue
				}
				again := func() { w.send(from, to, family, tag) }
				all = append(all, letter{w.send(from, to, family, tag), should(from, to), again})
			}
		}
	}
	arrived := func(l letter) bool { _, ok := w.source(l.key); return ok }
	nettest.Eventually(w.t, tag+": what should arrive", func() bool {
		whole := true
		for _, l := range all {
			if l.should && !arrived(l) {
				whole = false
				l.again()
			}
		}
		return whole
	})
	<-time.After(100 * time.Millisecond) // there is no event to wait for if nothing arrives
	var got []string
	for _, l := range all {
		if !arrived(l) {
			continue
		}
		got = append(got, l.key)
		if !l.should {
			w.t.Errorf("arrived, and should not have: %s", l.key)
		}
	}
	return got
}

func (w *world) inside(at *ns.Netns, f func() error) {
	w.t.Helper()
	must(w.t, at.Do(f))
}

func (w *world) handle(at *ns.Netns) *netlink.Handle {
	w.t.Helper()
	h, err := netlink.NewHandleAt(netns.NsHandle(at.Fd()), unix.NETLINK_ROUTE)
	must(w.t, err)
	w.t.Cleanup(h.Close)
	return h
}

// up sets a link up: ip link set NAME up
func (w *world) up(h *netlink.Handle, name string) netlink.Link {
	w.t.Helper()
	link, err := h.LinkByName(name)
	must(w.t, err)
	must(w.t, h.LinkSetUp(link))
	return link
}

// neighbour: ip neigh add ADDR lladdr MAC dev LINK nud permanent
func (w *world) neighbour(h *netlink.Handle, link netlink.Link, addr netip.Addr, mac net.HardwareAddr) {
	w.t.Helper()
	must(w.t, h.NeighAdd(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: addr.AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT}))
}

func host(addr netip.Addr) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
}

func everything(family int) *net.IPNet {
	bits := []int{32, 128}[family]
	return &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}
}
