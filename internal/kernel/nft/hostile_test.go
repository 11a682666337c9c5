package nft

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/cidrs"
	"github.com/berth-net/berth/internal/kernel/conntrack"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// newHostile makes newNode's world, moves both pods' links to the live group, and writes a table. It
// also returns the frames by which pod a sends.
func newHostile(t *testing.T, edit func(*Ruleset)) (w *world, a, b, beyond *place, from *frames, r Ruleset) {
	w, a, b, beyond = newNode(t)
	r = sample()
	r.Excluded = cidrs.Set{}
	edit(&r)
	must(t, Open(w.node.at).Replace(r))
	w.group(a, r.Live)
	w.group(b, r.Live)
	return w, a, b, beyond, w.frames(a), r
}

// overhear records the packets that arrive at a place by a network such as "udp4" or
// "ip6:tcp", for any address, until the test ends. Of each packet it records the part from "say " on.
func (w *world) overhear(p *place, network, address string) {
	w.t.Helper()
	nettest.Hear(w.t, p.at, network, address, func(_ net.PacketConn, packet []byte, from net.Addr) {
		_, text, ok := strings.Cut(string(packet), "say ")
		host, _, err := net.SplitHostPort(from.String())
		if err != nil {
			host = from.String()
		}
		addr, err := netip.ParseAddr(host)
		if !ok || err != nil {
			return
		}
		w.log.mu.Lock()
		defer w.log.mu.Unlock()
		w.log.seen[text+" at "+p.name] = addr.Unmap().WithZone("")
	})
}

// said reports whether overhear has recorded a text at a place.
func (w *world) said(text string, p *place) bool {
	_, ok := w.source(text + " at " + p.name)
	return ok
}

// wantSaid fails the test unless a place hears a text, or does not hear it, as heard says. A goroutine
// reads each of the place's sockets: the place may hear by one socket what was sent later than the text.
func (w *world) wantSaid(what, text string, p *place, heard bool) {
	w.t.Helper()
	if heard {
		nettest.Eventually(w.t, what, func() bool { return w.said(text, p) })
	} else if w.said(text, p) {
		w.t.Errorf("%s arrives at %s", what, p.name)
	}
}

// Nobody hears a pod's datagrams from the unspecified address, whether they go to broadcast or
// to multicast. Others hear the datagrams from the pod's own address.
func TestNobody(t *testing.T) {
	w, a, _, _, from, _ := newHostile(t, func(*Ruleset) {})
	w.overhear(w.node, "udp4", "0.0.0.0:67")
	w.overhear(w.node, "udp6", "[::]:67")
	w.overhear(w.node, "ip6:ipv6-icmp", "::")
	echo := func(text string) []byte { return append([]byte{128, 0, 0, 0, 0, 1, 0, 1}, "say "+text...) }
	for i, to := range []string{"255.255.255.255", "224.0.0.1", "ff02::1"} {
		dst := netip.MustParseAddr(to)
		own, nobody := a.addrs[i/2], netip.IPv4Unspecified()
		if dst.Is6() {
			nobody = netip.IPv6Unspecified()
		}
		from.send(packet(nobody, dst, unix.IPPROTO_UDP, udp(68, 67, "say nobody to "+to)))
		if dst.Is6() {
			from.send(packet(nobody, dst, unix.IPPROTO_ICMPV6, echo("nobody's echo to "+to)))
		}
		nettest.Eventually(t, "its own to "+to, func() bool { // behind the other datagram in the same queue
			from.send(packet(own, dst, unix.IPPROTO_UDP, udp(68, 67, "say own to "+to)))
			return w.said("own to "+to, w.node)
		})
		if dst.Is6() {
			from.send(packet(own, dst, unix.IPPROTO_ICMPV6, echo("own echo to "+to)))
			nettest.Eventually(t, "its own echo to "+to, func() bool { return w.said("own echo to "+to, w.node) })
		}
		for _, text := range []string{"nobody to " + to, "nobody's echo to " + to} {
			if w.said(text, w.node) {
				t.Errorf("heard: %s", text)
			}
		}
	}
}

// A pod does not reach the node's loopback addresses, even if somebody has opened them to
// links. Packets from other links still reach these addresses: such packets are not Berth's business.
func TestLoopback(t *testing.T) {
	w, a, b, _, from, r := newHostile(t, func(*Ruleset) {})
	w.inside(w.node.at, func() error { return ns.SetSysctl("ipv4/conf/all/route_localnet", "1") })
	w.overhear(w.node, "udp4", "0.0.0.0:67")
	to := netip.MustParseAddr("127.0.0.1")
	w.group(b, r.Live+1)
	other := w.frames(b)
	from.send(packet(a.addrs[0], to, unix.IPPROTO_UDP, udp(68, 67, "say a")))
	nettest.Eventually(t, "another's link to reach it", func() bool {
		from.send(packet(a.addrs[0], to, unix.IPPROTO_UDP, udp(68, 67, "say a")))
		other.send(packet(b.addrs[0], to, unix.IPPROTO_UDP, udp(68, 67, "say b")))
		return w.said("b", w.node)
	})
	from.send(packet(a.addrs[0], w.node.addrs[0], unix.IPPROTO_UDP, udp(68, 67, "say whole")))
	nettest.Eventually(t, "the node's own address", func() bool { return w.said("whole", w.node) })
	if w.said("a", w.node) {
		t.Error("a live link reaches 127.0.0.1")
	}
}

// No packet leaves the node with a pod's own address where masquerade should hide it, not
// even a packet that belongs to no connection.
func TestInvalid(t *testing.T) {
	const synFinRst = 0x07
	for _, tt := range []struct {
		name   string
		edit   func(*Ruleset)
		leaves bool
	}{
		{"hidden", func(*Ruleset) {}, false},
		{"excluded", func(r *Ruleset) { r.Excluded = cidrs.Of(prefixes("192.0.2.0/24", "2001:db8::/64")...) }, true},
		{"not hidden", func(r *Ruleset) { r.Masquerade = false }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, a, _, beyond, from, _ := newHostile(t, tt.edit)
			w.overhear(beyond, "ip4:tcp", "0.0.0.0")
			w.overhear(beyond, "ip6:tcp", "::")
			w.overhear(beyond, "ip4:icmp", "0.0.0.0")
			w.overhear(beyond, "udp4", "0.0.0.0:67")
			w.overhear(beyond, "udp6", "[::]:67")
			unasked := []byte("\x00\x00\x00\x00\x00\x09\x00\x01say an echo's answer") // an answer that nobody asked for
			for i := range 2 {
				own, to := a.addrs[i], beyond.addrs[i]
				nettest.Eventually(t, "what is valid", func() bool {
					from.send(packet(own, to, unix.IPPROTO_TCP, tcp(synFinRst, fmt.Sprint("say flags", i))))
					if i == 0 {
						from.send(packet(own, to, unix.IPPROTO_ICMP, unasked))
					}
					from.send(packet(own, to, unix.IPPROTO_UDP, udp(68, 67, fmt.Sprint("say valid", i))))
					return w.said(fmt.Sprint("valid", i), beyond)
				})
				w.wantSaid(fmt.Sprintf("an invalid segment of family %d", i), fmt.Sprint("flags", i), beyond, tt.leaves)
			}
			w.wantSaid("an answer that nobody asked for", "an echo's answer", beyond, tt.leaves)
		})
	}
}

// The node forwards nothing from pods to the address where its cloud gives credentials
// away, except questions to name servers. The node itself still reaches that address, and
// pods reach what the node listens to there.
func TestBlocked(t *testing.T) {
	clouds := []string{"169.254.169.254", "fd00:ec2::254"}
	locals := []string{"169.254.20.10", "fd00:ec2::253"}
	for _, tt := range []struct {
		name    string
		blocked []netip.Prefix
		passes  bool
	}{
		{"blocked", sample().Blocked, false},
		{"nothing is", nil, true},
		{"others are", prefixes("169.254.169.253/32", "fd00:ec2::253/128"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, a, _, beyond, from, r := newHostile(t, func(r *Ruleset) { r.Blocked = tt.blocked })
			w.overhear(beyond, "udp4", "0.0.0.0:80")
			w.overhear(beyond, "udp6", "[::]:80")
			w.overhear(beyond, "udp4", "0.0.0.0:53")
			w.overhear(beyond, "udp6", "[::]:53")
			w.overhear(w.node, "udp4", "0.0.0.0:80")
			w.overhear(w.node, "udp6", "[::]:80")
			for i := range 2 {
				cloud, local := netip.MustParseAddr(clouds[i]), netip.MustParseAddr(locals[i])
				lo := w.up(w.handle(w.node.at), "lo")
				must(w.t, w.handle(beyond.at).AddrAdd(w.up(w.handle(beyond.at), "lo"), &netlink.Addr{IPNet: host(cloud), Flags: unix.IFA_F_NODAD}))
				must(w.t, w.handle(w.node.at).AddrAdd(lo, &netlink.Addr{IPNet: host(local), Flags: unix.IFA_F_NODAD}))
				mac := beyond.peer(w)
				w.neighbour(w.handle(w.node.at), beyond.link, cloud, mac)
				must(w.t, w.handle(w.node.at).RouteAdd(&netlink.Route{LinkIndex: beyond.link.Attrs().Index, Dst: host(cloud), Scope: netlink.SCOPE_LINK}))
				nettest.Eventually(t, "names and the node's own", func() bool {
					from.send(packet(a.addrs[i], cloud, unix.IPPROTO_UDP, udp(68, 80, fmt.Sprint("say cloud", i))))
					from.send(packet(a.addrs[i], cloud, unix.IPPROTO_UDP, udp(68, 53, fmt.Sprint("say names", i))))
					from.send(packet(a.addrs[i], local, unix.IPPROTO_UDP, udp(68, 80, fmt.Sprint("say local", i))))
					w.sayTo(w.node.at, netip.AddrPortFrom(cloud, 80), fmt.Sprint("say node", i))
					return w.said(fmt.Sprint("names", i), beyond) && w.said(fmt.Sprint("local", i), w.node) && w.said(fmt.Sprint("node", i), beyond)
				})
				w.wantSaid("what goes to "+clouds[i], fmt.Sprint("cloud", i), beyond, tt.passes)
			}
			if _, err := Open(w.node.at).Verify(r); err != nil {
				t.Error(err)
			}
		})
	}
}

// peer returns the MAC of a place's own end.
func (p *place) peer(w *world) (mac net.HardwareAddr) {
	w.inside(p.at, func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = eth0.HardwareAddr
		}
		return err
	})
	return mac
}

// sayTo sends a datagram by a socket.
func (w *world) sayTo(at *ns.Netns, to netip.AddrPort, text string) {
	w.t.Helper()
	w.inside(at, func() error {
		conn, err := net.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, _ = conn.Write([]byte(text)) // the test looks at whether the datagram arrives
		return nil
	})
}

// A pod opens as many connections as it may, whatever source addresses it uses, and its open
// connections go on. Another pod can still open its own connections. Verify does not take what packets
// leave in the table for a change. When the pod's entries are gone, it can open connections again.
func TestLimit(t *testing.T) {
	for _, tt := range []struct {
		allowed     uint32
		flows       int
		least, most int // entries
	}{
		{100, 1000, 100, 100},     // the rules count each connection
		{4096, 12000, 2700, 5500}, // the rules count one of 16: the bounds are five standard deviations apart from the limit
	} {
		t.Run(fmt.Sprint(tt.allowed), func(t *testing.T) {
			w, a, b, beyond, from, r := newHostile(t, func(r *Ruleset) { r.Connections = tt.allowed })
			w.overhear(beyond, "udp4", "0.0.0.0:67")
			w.overhear(beyond, "udp6", "[::]:67")
			open := func(f *frames, p *place, family, sport int, text string) {
				f.send(packet(p.addrs[family], beyond.addrs[family], unix.IPPROTO_UDP, udp(uint16(sport), 67, "say "+text)))
			}
			nettest.Eventually(t, "the first connection", func() bool {
				open(from, a, 0, 68, "first")
				return w.said("first", beyond)
			})
			for i := range tt.flows {
				open(from, a, i%2, 1000+i, "flood")
				open(from, b, i%2, 1000+i, "flood in b's name")
			}
			if n := w.entries(); n < tt.least || n > tt.most {
				t.Errorf("%d entries, want %d to %d", n, tt.least, tt.most)
			}
			nettest.Eventually(t, "an open connection to go on", func() bool {
				open(from, a, 0, 68, "still")
				return w.said("still", beyond)
			})
			other := w.frames(b)
			nettest.Eventually(t, "another pod's connections", func() bool {
				open(other, b, 0, 68, "b4")
				open(other, b, 1, 68, "b6")
				return w.said("b4", beyond) && w.said("b6", beyond)
			})
			open(from, a, 0, 69, "one more")
			if _, err := Open(w.node.at).Verify(r); err != nil {
				t.Errorf("what packets left in the table: %v", err)
			}
			if w.said("one more", beyond) {
				t.Error("a crowded link opens one more")
			}
			w.forget(a)
			nettest.Eventually(t, "room, when the entries are gone", func() bool {
				open(from, a, 0, 70, "again")
				return w.said("again", beyond)
			})
		})
	}
}

// A patient pod opens as many connections as it can after each rest, and keeps them open: at
// its limit it can open none. Once the pod has room, its next packet is lost, so that the pod
// knows no connection that is counted. After that it opens as many connections as any pod.
func TestLimitOfThePatient(t *testing.T) {
	const allowed, inRow = 4096, 500
	w, a, _, beyond, from, r := newHostile(t, func(r *Ruleset) { r.Connections = allowed })
	w.overhear(beyond, "udp4", "0.0.0.0:67")
	nettest.Eventually(t, "the first connection", func() bool {
		from.send(packet(a.addrs[0], beyond.addrs[0], unix.IPPROTO_UDP, udp(68, 67, "say first")))
		return w.said("first", beyond)
	})
	sport := uint16(1000)
	open := func(n int) {
		for range n {
			from.send(packet(a.addrs[0], beyond.addrs[0], unix.IPPROTO_UDP, udp(sport, 9, "")))
			sport++
		}
	}
	rested := func() { nftRun(t, w.node.at, "", "flush", "set", "inet", r.Table(), crowded.name) }
	open(2 * allowed)
	many := w.entries()
	for range 20 { // without strict links some 16 connections would come through each time
		rested()
		open(inRow)
	}
	if n := w.entries(); n > many {
		t.Errorf("%d entries at the limit, and %d after 20 rests", many, n)
	}
	w.forget(a)
	rested()
	open(1)
	if n := w.entries(); n != 0 {
		t.Errorf("%d entries by the packet that shows that there is room, want none", n)
	}
	open(allowed / 2)
	nettest.Eventually(t, "as many connections as any pod has", func() bool { return w.entries() == allowed/2 }) // a busy node forwards later
	if _, err := Open(w.node.at).Verify(r); err != nil {
		t.Errorf("what packets left in the table: %v", err)
	}
}

// A pod opens TCP connections and closes them; the kernel does not count closed connections. The pod
// can go on only as fast as its bucket fills. The bucket limits neither other protocols nor another
// pod.
func TestHaste(t *testing.T) {
	const allowed = 100
	w, a, b, beyond, from, r := newHostile(t, func(r *Ruleset) { r.Connections, r.Masquerade = allowed, false })
	open := func(f *frames, p *place) {
		for sport := range uint16(10 * allowed) {
			segment := tcp(2, "") // SYN
			binary.BigEndian.PutUint16(segment, 1000+sport)
			f.send(packet(p.addrs[0], beyond.addrs[0], unix.IPPROTO_TCP, segment))
		}
	}
	w.overhear(beyond, "udp4", "0.0.0.0:67")
	nettest.Eventually(t, "the node to know its neighbours", func() bool {
		from.send(packet(a.addrs[0], beyond.addrs[0], unix.IPPROTO_UDP, udp(68, 67, "say first")))
		return w.said("first", beyond)
	})
	w.forget(a)
	for _, p := range []*place{a, b} { // answers would end the entries at once
		must(w.t, w.handle(beyond.at).RouteAdd(&netlink.Route{Dst: host(p.addrs[0]), Type: unix.RTN_BLACKHOLE}))
	}
	open(from, a)
	if n := w.entries(); n != allowed {
		t.Errorf("%d entries, want %d", n, allowed)
	}
	w.forget(a) // the kernel's entries are gone, as if the pod had closed the connections
	open(from, a)
	if n := w.entries(); n >= allowed/2 {
		t.Errorf("%d entries more at once, want what half a minute's share of them is", n)
	}
	w.forget(a)
	// If it took the test long to open these connections, the bucket had a token for one connection too
	// many, and the link rests.
	nftRun(t, w.node.at, "", "flush", "set", "inet", r.Table(), crowded.name)
	for sport := range uint16(allowed) {
		from.send(packet(a.addrs[0], beyond.addrs[0], unix.IPPROTO_UDP, udp(1000+sport, 67, "")))
	}
	if n := w.entries(); n < allowed {
		t.Errorf("%d datagrams of %d are tracked", n, allowed)
	}
	w.forget(a)
	open(w.frames(b), b)
	if n := w.entries(); n < allowed {
		t.Errorf("another pod opens %d connections, want %d", n, allowed)
	}
}

// The node hears no segment of a live link by which it would speak MPTCP, however many such
// options the segment has. The node hears a segment that begins with one such option, but without that
// option. It also hears segments with other options. Packets of other links keep their options.
func TestMultipath(t *testing.T) {
	w, a, b, _, from, r := newHostile(t, func(*Ruleset) {})
	w.group(b, r.Live+1)
	other := w.frames(b)
	w.overhear(w.node, "ip4:tcp", "0.0.0.0")
	w.overhear(w.node, "ip6:tcp", "::")
	capable, join := []byte{30, 4, 0x01, 0x01}, append([]byte{30, 12, 0x10, 1}, make([]byte, 8)...)
	answer := append([]byte{30, 20, 0x01, 0x01}, make([]byte, 16)...)
	stamps := append([]byte{1, 1, 8, 10}, make([]byte, 8)...)
	lost := append([]byte{1, 1, 5, 18}, make([]byte, 16)...) // two blocks of a SACK
	const syn, ack = 2, 16
	for i, tt := range []struct {
		flags   byte
		options [][]byte
		heard   bool
	}{
		{syn, nil, true},
		{syn, [][]byte{stamps, capable}, true},
		{syn | ack, [][]byte{capable}, true},
		{syn, [][]byte{capable, capable}, false},
		{syn | ack, [][]byte{capable, stamps, capable}, false},
		{syn, [][]byte{capable, join}, false},
		{syn, [][]byte{capable, capable, join}, false},
		{ack, [][]byte{answer}, false},
		{ack, [][]byte{stamps, answer}, false},
		{ack, [][]byte{stamps, lost}, true},
		{ack, [][]byte{stamps}, true},
	} {
		options := slices.Concat(tt.options...)
		segment := func(text string) []byte {
			s := tcp(tt.flags, "")
			s[12] = byte(5+len(options)/4) << 4
			return slices.Concat(s, options, []byte("say "+text))
		}
		for family := range 2 {
			text := fmt.Sprint(i, " by ", family)
			nettest.Eventually(t, text+" by another link", func() bool {
				from.send(packet(a.addrs[family], w.node.addrs[family], unix.IPPROTO_TCP, segment(text)))
				from.send(packet(a.addrs[family], w.node.addrs[family], unix.IPPROTO_TCP, tcp(ack, "say behind "+text)))
				other.send(packet(b.addrs[family], w.node.addrs[family], unix.IPPROTO_TCP, segment("other's "+text)))
				return w.said("behind "+text, w.node) && w.said("other's "+text, w.node)
			})
			if got := w.said(text, w.node); got != tt.heard {
				t.Errorf("flags %#x, options %x, family %d: heard %v, want %v", tt.flags, tt.options, family, got, tt.heard)
			}
		}
	}
}

// If the kernel lacks an expression of another rule, Complete looks for the expression again
// and again. These tries do not give a pod its share anew.
func TestLimitOutlivesComplete(t *testing.T) {
	const allowed = 100
	w, a, _, beyond, from, r := newHostile(t, func(r *Ruleset) { r.Connections = allowed })
	tables := Open(w.node.at)
	lacking(tables, &expr.Fib{})
	must(w.t, tables.Replace(r))
	for sweep := range uint16(3) {
		must(w.t, tables.Complete(r))
		if lacks := tables.Lacks(); lacks != Sources|HostPorts {
			t.Fatalf("the table lacks %v", lacks)
		}
		for sport := range uint16(3 * allowed) {
			from.send(packet(a.addrs[0], beyond.addrs[0], unix.IPPROTO_UDP, udp(1000+1000*sweep+sport, 67, "")))
		}
	}
	if n := w.entries(); n != allowed {
		t.Errorf("%d entries after three looks, want %d", n, allowed)
	}
	lacking(tables)
	must(w.t, tables.Complete(r))
	if lacks := tables.Lacks(); lacks != 0 {
		t.Errorf("the kernel has all by now, and the table lacks %v", lacks)
	}
	wantWhole(t, tables, r)
}

// A pool that comes or goes, or one more blocked network, gives no pod its share anew.
func TestLimitOutlivesChange(t *testing.T) {
	const allowed = 100
	w, a, _, beyond, from, r := newHostile(t, func(r *Ruleset) { r.Connections = allowed })
	tables := Open(w.node.at)
	for i, edit := range []func(*Ruleset){
		func(*Ruleset) {},
		func(r *Ruleset) { r.Pools = append(r.Pools, prefixes("10.77.0.0/16")...) },
		func(r *Ruleset) { r.Blocked = append(r.Blocked, prefixes("100.64.0.0/10")...) },
		func(r *Ruleset) { r.Masquerade = !r.Masquerade },
	} {
		was := r
		edit(&r)
		must(w.t, tables.Change(was, r))
		for sport := range uint16(3 * allowed) {
			from.send(packet(a.addrs[0], beyond.addrs[0], unix.IPPROTO_UDP, udp(1000+1000*uint16(i)+sport, 67, "")))
		}
	}
	if n := w.entries(); n != allowed {
		t.Errorf("%d entries after three changes, want %d", n, allowed)
	}
	was := r
	r.Connections *= 2
	must(w.t, tables.Change(was, r))
	for sport := range uint16(3 * allowed) {
		from.send(packet(a.addrs[0], beyond.addrs[0], unix.IPPROTO_UDP, udp(9000+sport, 67, "")))
	}
	if n := w.entries(); n <= 2*allowed {
		t.Errorf("%d entries, and each pod may have %d from now on", n, 2*allowed)
	}
}

// entries returns how many entries the node's connection tracking has.
func (w *world) entries() (n int) {
	w.inside(w.node.at, func() error {
		text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
		if err == nil {
			n, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err
	})
	return n
}

// forget deletes a pod's entries, as the kind flows does when the agent releases a pod.
func (w *world) forget(p *place) {
	c, err := conntrack.Open(w.node.at)
	must(w.t, err)
	defer c.Close()
	must(w.t, c.Forget(p.addrs))
}
