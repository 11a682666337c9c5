package node

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// hostPorts is the runtime's configuration with these mappings.
func hostPorts(mappings ...string) string {
	return fmt.Sprintf(`"runtimeConfig":{"portMappings":[%s]}`, strings.Join(mappings, ","))
}

const (
	web   = `{"hostPort":8080,"containerPort":80,"protocol":"tcp"}`
	names = `{"HostPort":5353,"ContainerPort":53,"Protocol":"udp","HostIP":""}` // as containerd writes it
)

// machine makes a machine of the node's LAN, whose addresses are 198.51.100.9 and 2001:db8:9::9. The
// node's addresses there are 198.51.100.8 and 2001:db8:9::8. The machine has no route to pods.
func machine(t *testing.T) *ns.Netns {
	t.Helper()
	there := nettest.Node(t)
	nettest.Run(t, nil, "ip link add lan0 type veth peer name eth0 netns "+there.Ref().Path)
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del lan0") })
	forwards(t)
	for _, line := range []string{"ip addr add 198.51.100.8/24 dev lan0", "ip addr add 2001:db8:9::8/64 dev lan0 nodad", "ip link set lan0 addrgenmode none", "ip link set lan0 up"} {
		nettest.Run(t, nil, line)
	}
	for _, line := range []string{"ip addr add 198.51.100.9/24 dev eth0", "ip addr add 2001:db8:9::9/64 dev eth0 nodad", "ip link set eth0 up"} {
		nettest.Run(t, there, line)
	}
	nettest.Eventually(t, "the kernel to have made its routes", func() bool {
		return strings.Contains(nettest.Snapshot(t, nil).Only("route").String(), "inet6 multicast ff00::/8 dev lan0")
	})
	return there
}

// forwards turns forwarding on, as an agent does that starts: the kernel then has further routes
// to the node's addresses.
func forwards(t *testing.T) {
	t.Helper()
	must(t, os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644))
}

// startUnwatched starts an agent in a node on which others leave traces of their own.
func startUnwatched(t *testing.T) *agent {
	t.Helper()
	a := newAgent(t, nil, pools)
	a.start()
	t.Cleanup(func() { a.releaseAll(); a.remove() })
	return a
}

// serve serves TCP on port 80 and UDP on port 53 in a pod.
func serve(t *testing.T, pod *ns.Netns, got attached) {
	t.Helper()
	for _, a := range got.addrs {
		nettest.Serve(t, pod, "tcp", netip.AddrPortFrom(a, 80).String())
		nettest.Serve(t, pod, "udp", netip.AddrPortFrom(a, 53).String())
	}
}

// reaches talks to a pod by its host ports, and returns at which address the pod sees the client.
func reaches(t *testing.T, from *ns.Netns, network, to string) netip.Addr {
	t.Helper()
	var seen netip.AddrPort
	var err error
	nettest.Eventually(t, "an answer from "+to, func() bool {
		seen, err = nettest.Talk(from, network, netip.MustParseAddrPort(to), 5*time.Second)
		return err == nil
	})
	return seen.Addr()
}

// A pod's host ports lead to the pod from everywhere, for TCP and UDP of both families.
func TestHostPorts(t *testing.T) {
	hasAddresses(t)
	lan := machine(t)
	a := startAgent(t, pools)
	pod, other := nettest.Pod(t), nettest.Pod(t)
	got := a.add("c", pod, hostPorts(web, names))
	client := a.add("other", other)
	serve(t, pod, got)
	for _, f := range []struct{ name, lan, node, loopback string }{
		{"IPv4", "198.51.100.8", "192.0.2.1", "127.0.0.1"},
		{"IPv6", "[2001:db8:9::8]", "[2001:db8::1]", "[::1]"},
	} {
		t.Run(f.name, func(t *testing.T) {
			six := 0
			if f.name == "IPv6" {
				six = 1
			}
			for network, port := range map[string]string{"tcp": ":8080", "udp": ":5353"} {
				t.Run(network, func(t *testing.T) {
					seen := reaches(t, lan, network, f.lan+port)
					if want := []string{"198.51.100.9", "2001:db8:9::9"}[six]; seen.String() != want {
						t.Errorf("from outside, the pod sees %s, not the client's own address %s", seen, want)
					}
					if seen := reaches(t, other, network, f.node+port); seen != client.addrs[six] {
						t.Errorf("from another pod, the pod sees %s, not %s", seen, client.addrs[six])
					}
					reaches(t, nil, network, f.node+port)
					reaches(t, pod, network, f.node+port)
					reaches(t, nil, network, f.loopback+port)
				})
			}
		})
	}
}

// A host port of one address leads to the pod by that address alone, and a host port of 127.0.0.1
// from the node alone. A host port of all addresses leaves programs of the node alone that listen
// at other loopback addresses, as systemd-resolved does.
func TestHostPortsOfOneAddress(t *testing.T) {
	hasAddresses(t)
	lan := machine(t)
	a := startUnwatched(t)
	pod := nettest.Pod(t)
	got := a.add("c", pod, hostPorts(
		`{"hostPort":8080,"containerPort":80,"hostIP":"198.51.100.8"}`, `{"hostPort":8081,"containerPort":80,"hostIP":"127.0.0.1"}`,
		`{"hostPort":8082,"containerPort":80,"hostIP":"::"}`, `{"hostPort":8083,"containerPort":80}`,
		`{"hostPort":8084,"containerPort":80,"hostIP":"127.0.0.2"}`))
	serve(t, pod, got)
	nettest.Serve(t, nil, "tcp", "127.0.0.53:8083")
	if seen := reaches(t, nil, "tcp", "127.0.0.53:8083"); !seen.IsLoopback() {
		t.Errorf("127.0.0.53 leads to the pod, which sees %s", seen)
	}
	if seen := reaches(t, nil, "tcp", "127.0.0.1:8083"); seen.IsLoopback() {
		t.Errorf("127.0.0.1 leads to the node itself, which sees %s", seen)
	}
	reaches(t, nil, "tcp", "127.0.0.2:8084")
	reaches(t, lan, "tcp", "198.51.100.8:8080")
	reaches(t, nil, "tcp", "127.0.0.1:8081")
	reaches(t, lan, "tcp", "[2001:db8:9::8]:8082")
	for _, to := range []string{"192.0.2.1:8080", "127.0.0.1:8080", "[::1]:8080", "198.51.100.8:8081", "198.51.100.8:8082"} {
		refuses(t, nil, to)
	}
	refuses(t, lan, "198.51.100.8:8081")
}

// refuses fails unless the node itself refuses TCP connections to a port.
func refuses(t *testing.T, from *ns.Netns, to string) {
	t.Helper()
	if _, err := nettest.Talk(from, "tcp", netip.MustParseAddrPort(to), nettest.Deadline); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("%s: %v, want that the node refuses", to, err)
	}
}

// Two pods cannot have the same port of the node, whether of one address or of all. The refusal
// names the pod that has the port, and leaves nothing behind. A pod that replaces this pod gets
// the port right after that pod's DEL.
func TestHostPortConflict(t *testing.T) {
	hasAddresses(t)
	a := startAgent(t, pools)
	first, second := nettest.Pod(t), nettest.Pod(t)
	a.add("c", first, hostPorts(web))
	before := len(a.list())
	for _, m := range []string{web, `{"hostPort":8080,"containerPort":81,"hostIP":"192.0.2.1"}`, `{"hostPort":8080,"containerPort":81,"hostIP":"::"}`} {
		_, err := a.tryAdd("d", second, hostPorts(names, m))
		programs.WantError(t, err, 101, "net/c/eth0")
		programs.WantError(t, err, 101, ":8080")
	}
	if now := len(a.list()); now != before {
		t.Errorf("%d attachments, and %d before the refused ADDs", now, before)
	}
	a.wantClean()
	a.add("e", nettest.Pod(t), hostPorts(names, `{"hostPort":8080,"containerPort":81,"protocol":"udp"}`)) // another protocol
	_, err := a.tryAdd("f", nettest.Pod(t), hostPorts(`{"hostPort":8080,"containerPort":81,"protocol":"udp","hostIP":"192.0.2.1"}`))
	programs.WantError(t, err, 101, "net/e/eth0")

	a.del("c")
	got := a.add("d", second, hostPorts(web))
	serve(t, second, got)
	reaches(t, nil, "tcp", "192.0.2.1:8080")
	_, err = a.tryAdd("d", second, hostPorts(web, `{"hostPort":8081,"containerPort":81}`))
	programs.WantError(t, err, 7, "8081") // a repeated ADD that asks for more
	_, err = a.tryAdd("d", nettest.Pod(t), hostPorts(web))
	programs.WantError(t, err, 101, "DEL it first") // of the same container elsewhere
	reaches(t, nil, "tcp", "192.0.2.1:8080")
}

// Host ports, and the flows through them, outlive the agent, a reload, and what others do to the
// table.
func TestHostPortsOutlive(t *testing.T) {
	lan := machine(t)
	a := newAgent(t, nil)
	const plain = "cooldown: 1s\npools:\n- {name: default, cidrs: [10.88.0.0/24, 'fd00:88::/64']}\n"
	a.configure(plain)
	a.startWatched()
	pod := nettest.Pod(t)
	got := a.add("c", pod, hostPorts(web, names, `{"hostPort":7000,"containerPort":7000}`))
	serve(t, pod, got)
	alive := flow(t, lan, pod, netip.AddrPortFrom(got.addrs[0], 7000), netip.MustParseAddrPort("198.51.100.8:7000"))
	local := flow(t, nil, pod, netip.AddrPortFrom(got.addrs[1], 7000), netip.MustParseAddrPort("[::1]:7000"))
	works := func(after string) {
		t.Helper()
		must(t, alive())
		must(t, local())
		for _, to := range []string{"198.51.100.8", "[2001:db8:9::8]"} {
			reaches(t, lan, "tcp", to+":8080")
			reaches(t, lan, "udp", to+":5353")
		}
		if t.Failed() {
			t.Fatalf("after %s", after)
		}
	}
	works("the ADD")
	generation := elements(t, a)
	a.kill()
	works("the agent's death")
	a.start()
	works("the agent's start")
	a.stop()
	a.start()
	works("the agent's second start")
	a.configure(plain + "- {name: extra, cidrs: [10.89.0.0/24]}\nconnections: 1000\n")
	a.reload(inForce)
	works("a reload")
	if now := elements(t, a); now != generation {
		t.Errorf("the maps have\n%s\nand had\n%s", now, generation)
	}
	nft(t, "delete element inet "+a.table()+" anyports4 { tcp . 8080 }")
	reaches(t, lan, "tcp", "198.51.100.8:8080")
	nft(t, "add element inet "+a.table()+" anyports4 { tcp . 9090 : 10.88.0.77 . 80 }")
	nettest.Eventually(t, "a stranger's mapping to be gone", func() bool { return elements(t, a) == generation })
	nft(t, "flush ruleset")
	for _, to := range []string{"198.51.100.8:8080", "[2001:db8:9::8]:8080", "127.0.0.1:8080"} {
		from := lan
		if strings.HasPrefix(to, "127.") {
			from = nil
		}
		reaches(t, from, "tcp", to)
	}
	nettest.Eventually(t, "all mappings to be back", func() bool { return elements(t, a) == generation })
	nettest.Run(t, nil, "ip route del local 169.254.255.1 table main")
	nettest.Run(t, nil, "ip -6 route del local 100::1 table main")
	reaches(t, nil, "tcp", "127.0.0.1:8080")
	reaches(t, nil, "tcp", "[::1]:8080")
	a.wantClean()
	a.stop()
	saved := nft(t, "list table inet "+a.tableName)
	nft(t, "delete table inet "+a.tableName)
	a.start()
	reaches(t, lan, "tcp", "198.51.100.8:8080")
	nettest.Eventually(t, "all mappings to be back", func() bool { return elements(t, a) == generation })
	a.stop()
	others := strings.ReplaceAll(saved, ": "+got.addrs[0].String()+" . 80", ": 10.88.0.77 . 80") // in the pod's name
	if others == saved {
		t.Fatalf("no mapping to change in\n%s", saved)
	}
	nft(t, "delete table inet "+a.tableName+"; "+others)
	a.start()
	nettest.Eventually(t, "all mappings to be right", func() bool { return elements(t, a) == generation })
	a.del("c", wait)
	a.stop()
	nft(t, "delete table inet "+a.tableName+"; "+saved) // the saved table has the dead pod's ports
	a.start()
	nettest.Eventually(t, "the dead pod's mappings to be gone", func() bool { return elements(t, a) == "" })
}

// nft runs nft, and returns what it prints.
func nft(t *testing.T, commands string) string {
	t.Helper()
	programs.Need(t, "nft")
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(commands)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v\n%s\n%s", err, out, commands)
	}
	return string(out)
}

// elements returns the host ports in the agent's table, sorted.
func elements(t *testing.T, a *agent) string {
	t.Helper()
	if a.cmd != nil {
		a.tableName = a.table()
	}
	var lines []string
	for line := range strings.Lines(nettest.Snapshot(t, nil).Only("nft").String()) {
		if strings.Contains(line, "ports") && strings.Contains(line, "element") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// flow opens a TCP connection from a client to a server in a pod, by way of a host port. alive sends
// over the connection, enough to fill the buffers on the way in both directions.
func flow(t *testing.T, client, server *ns.Netns, at, by netip.AddrPort) (alive func() error) {
	t.Helper()
	var l net.Listener
	inside(t, server, func() (err error) { l, err = net.Listen("tcp", at.String()); return err })
	t.Cleanup(func() { l.Close() })
	go func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = io.Copy(conn, conn)
		}
	}()
	var conn net.Conn
	inside(t, client, func() (err error) {
		conn, err = net.DialTimeout("tcp", by.String(), nettest.Deadline)
		return err
	})
	t.Cleanup(func() { conn.Close() })
	return func() error {
		sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<14)
		conn.SetDeadline(time.Now().Add(nettest.Deadline))
		failed := make(chan error, 1)
		go func() { _, err := conn.Write(sent); failed <- err }()
		got := make([]byte, len(sent))
		_, err := io.ReadFull(conn, got)
		if err == nil && !bytes.Equal(got, sent) {
			err = errors.New("other bytes come back than were sent")
		}
		return errors.Join(err, <-failed)
	}
}

// Berth maps only packets to the node itself. It does not map packets that the node forwards or
// sends to the same port of another machine (CVE-2025-67499).
func TestHostPortsCatchNobodyElses(t *testing.T) {
	lan := machine(t)
	beyond := outside(t) // 192.0.2.2, the node's default route
	for _, line := range []string{"ip addr add 203.0.113.5/32 dev lo", "ip addr add 2001:db8:5::5/128 dev lo nodad"} {
		nettest.Run(t, beyond, line)
	}
	nettest.Run(t, lan, "ip route add 203.0.113.5 via 198.51.100.8")
	nettest.Run(t, lan, "ip route add 2001:db8:5::5 via 2001:db8:9::8")
	a := startUnwatched(t)
	pod, other := nettest.Pod(t), nettest.Pod(t)
	got := a.add("c", pod, hostPorts(web, names)) // the pod serves nothing yet: what its host ports caught would get no answer
	a.add("other", other)
	families := []struct{ other, lan string }{{"203.0.113.5", "198.51.100.9"}, {"[2001:db8:5::5]", "2001:db8:9::9"}}
	for _, f := range families {
		nettest.Serve(t, beyond, "tcp", f.other+":8080")
		nettest.Serve(t, beyond, "udp", f.other+":5353")
	}
	for who, from := range map[string]*ns.Netns{"the LAN": lan, "another pod": other, "the pod": pod, "the node": nil} {
		for _, f := range families {
			for network, to := range map[string]string{"tcp": f.other + ":8080", "udp": f.other + ":5353"} {
				seen, err := nettest.Talk(from, network, netip.MustParseAddrPort(to), 5*time.Second)
				if err != nil {
					t.Errorf("%s, %s to %s: %v", who, network, to, err)
				} else if from == lan && seen.Addr().String() != f.lan {
					t.Errorf("%s sees %s, not %s", to, seen, f.lan)
				}
			}
		}
	}
	serve(t, pod, got)
	reaches(t, lan, "tcp", "198.51.100.8:8080")
	reaches(t, lan, "tcp", "[2001:db8:9::8]:8080")
}

// A pod may ask for a port at which a program of the node listens: the pod has the port from then
// on, from outside and from the node's own loopback, and the program has it again when the pod is
// gone. Connections that the program has already go on.
func TestHostPortOfANodesProgram(t *testing.T) {
	hasAddresses(t)
	lan := machine(t)
	a := startUnwatched(t)
	nettest.Serve(t, nil, "tcp", "0.0.0.0:22")
	has := func(who string) {
		t.Helper()
		for by, from := range map[string]*ns.Netns{"198.51.100.8:22": lan, "127.0.0.1:22": nil} {
			_, err := nettest.Talk(from, "tcp", netip.MustParseAddrPort(by), 5*time.Second)
			// The pod serves nothing.
			if program := who == "the program"; program && err != nil || !program && !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s should be %s's: %v", by, who, err)
			}
		}
	}
	has("the program")
	former := flow(t, lan, nil, netip.MustParseAddrPort("198.51.100.8:23"), netip.MustParseAddrPort("198.51.100.8:23"))
	must(t, former())
	a.add("c", nettest.Pod(t), hostPorts(`{"hostPort":22,"containerPort":22}`, `{"hostPort":23,"containerPort":23}`))
	has("the pod")
	if err := former(); err != nil {
		t.Errorf("a connection that the program had: %v", err)
	}
	a.del("c", wait)
	has("the program")
}

// A client that never stops sends to a port before a pod has the port, while the pod has it, and when
// the next pod has it. Each pod hears the client as long as the pod has the port, and no longer.
func TestHostPortsFlowsAreForgotten(t *testing.T) {
	for _, c := range []struct {
		name, to, client, protocol string
	}{
		{"UDP", "198.51.100.8", "198.51.100.9", "udp"}, {"UDP by IPv6", "2001:db8:9::8", "2001:db8:9::9", "udp"},
		{"SCTP", "198.51.100.8", "198.51.100.9", "sctp"}, {"SCTP by IPv6", "2001:db8:9::8", "2001:db8:9::9", "sctp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			lan := machine(t)
			a := startUnwatched(t)
			mapping, flows := names, "conntrack proto 17 src "+c.client+" dst "+c.to+" "
			if c.protocol == "sctp" {
				mapping, flows = association, "conntrack proto 132 src "+c.client+" dst "+c.to+" "
			}
			chatter(t, lan, c.protocol, netip.MustParseAddr(c.to))
			nettest.Eventually(t, "a flow to the node itself", func() bool {
				return strings.Contains(nettest.Snapshot(t, nil).Only("conntrack").String(), flows)
			})
			for i := range 2 {
				pod := nettest.Pod(t)
				name := fmt.Sprint("c", i)
				got := a.add(name, pod, hostPorts(mapping))
				nettest.Eventually(t, name+" to hear the client", hears(t, pod, c.protocol, netip.MustParseAddr(c.client)))
				a.del(name, wait)
				left := nettest.Snapshot(t, nil).Only("conntrack").String()
				for _, addr := range got.addrs {
					if strings.Contains(left, " "+addr.String()+" ") {
						t.Errorf("a flow to the dead pod is left:\n%s", left)
					}
				}
			}
		})
	}
}

// A client's flow goes to the node's own port. The node's address is away while a pod comes that has the port, as when a
// network manager sets the address anew: the agent then cannot tell that the flow is the node's. The pod hears the
// client once the address is back.
func TestHostPortsOfAnAddressThatComesBack(t *testing.T) {
	const to, client = "198.51.100.8", "198.51.100.9"
	lan := machine(t)
	a := startUnwatched(t)
	chatter(t, lan, "udp", netip.MustParseAddr(to))
	nettest.Eventually(t, "a flow to the node itself", func() bool {
		return strings.Contains(nettest.Snapshot(t, nil).Only("conntrack").String(), "conntrack proto 17 src "+client+" dst "+to+" ")
	})
	link, bits := linkWith(t, to)
	nettest.Run(t, nil, fmt.Sprintf("ip addr del %s/%d dev %s", to, bits, link))
	pod := nettest.Pod(t)
	a.add("c", pod, hostPorts(names))
	nettest.Run(t, nil, fmt.Sprintf("ip addr add %s/%d dev %s", to, bits, link))
	nettest.Eventually(t, "the pod to hear the client", hears(t, pod, "udp", netip.MustParseAddr(client)))
	a.del("c", wait)
}

// linkWith returns the node's link that has an address, and the length of the address's prefix.
func linkWith(t *testing.T, addr string) (link string, bits int) {
	t.Helper()
	links, err := net.Interfaces()
	must(t, err)
	for _, l := range links {
		addrs, err := l.Addrs()
		must(t, err)
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().String() == addr {
				return l.Name, p.Bits()
			}
		}
	}
	t.Fatalf("no link has %s", addr)
	return "", 0
}

// Connections by the host ports of a pod that is deleted end at their next packet, from outside and
// from the node.
func TestHostPortsEndConnections(t *testing.T) {
	hasAddresses(t)
	lan := machine(t)
	a := startUnwatched(t)
	pod := nettest.Pod(t)
	got := a.add("c", pod, hostPorts(`{"hostPort":7000,"containerPort":7000}`, `{"hostPort":7001,"containerPort":7001}`))
	alive := map[string]func() error{
		"from outside":     flow(t, lan, pod, netip.AddrPortFrom(got.addrs[0], 7000), netip.MustParseAddrPort("198.51.100.8:7000")),
		"by the loopback":  flow(t, nil, pod, netip.AddrPortFrom(got.addrs[0], 7001), netip.MustParseAddrPort("127.0.0.1:7001")),
		"by the loopback6": flow(t, nil, pod, netip.AddrPortFrom(got.addrs[1], 7001), netip.MustParseAddrPort("[::1]:7001")),
	}
	for from, works := range alive {
		if err := works(); err != nil {
			t.Errorf("%s: %v", from, err)
		}
	}
	a.del("c", wait)
	for from, works := range alive {
		if err := works(); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s, after the DEL: %v, want that the node resets it", from, err)
		}
	}
}

// chatter sends datagrams to port 5353, or begins SCTP associations with port 9899, without end and
// from one port.
func chatter(t *testing.T, from *ns.Netns, protocol string, to netip.Addr) {
	t.Helper()
	network, address, packet := "udp", netip.AddrPortFrom(to, 5353).String(), []byte("!")
	if protocol == "sctp" {
		network, address, packet = sctpNetwork(to), to.String(), sctpInit(4000, 9899)
	}
	var conn net.Conn
	inside(t, from, func() (err error) { conn, err = net.Dial(network, address); return err })
	keepSending(t, conn, packet)
}

// hears listens in a pod, at port 53 of UDP or to all SCTP packets, and returns a function that reports
// whether something from the client has come since the function was last called.
func hears(t *testing.T, pod *ns.Netns, protocol string, client netip.Addr) (heard func() bool) {
	t.Helper()
	network, address := "udp", ":53"
	if protocol == "sctp" {
		network, address = sctpNetwork(client), ""
	}
	var come atomic.Bool
	nettest.Hear(t, pod, network, address, func(_ net.PacketConn, _ []byte, from net.Addr) {
		host, _, err := net.SplitHostPort(from.String())
		if err != nil {
			host = from.String() // the address of a raw socket has no port
		}
		if host == client.String() {
			come.Store(true)
		}
	})
	return func() bool { return come.Swap(false) }
}

// Host ports open neither the node's loopback to a pod or to the LAN, nor the addresses that
// stand for the loopback inside the node.
func TestHostPortsKeepLoopbackClosed(t *testing.T) {
	hasAddresses(t)
	lan := machine(t)
	a := startAgent(t, pools)
	pod := nettest.Pod(t)
	got := a.add("c", pod, hostPorts(web, names))
	serve(t, pod, got)
	alive := reaches(t, nil, "tcp", "127.0.0.1:8080")
	if alive.IsLoopback() {
		t.Errorf("the pod sees %s", alive)
	}
	private4 := nettest.Serve(t, nil, "tcp", "127.0.0.1:0").Port()
	private6 := nettest.Serve(t, nil, "tcp", "[::1]:0").Port()
	public := nettest.Serve(t, nil, "tcp", "[::]:0").Port()
	nettest.Run(t, lan, "ip route add 169.254.255.1 via 198.51.100.8")
	nettest.Run(t, lan, "ip route add 100::1 via 2001:db8:9::8")
	nettest.Run(t, lan, "ip route add 10.88.0.0/24 via 198.51.100.8")
	inside(t, pod, func() error { return nettest.LoopbackUp() })
	for _, from := range []*ns.Netns{pod, lan} {
		for _, to := range []string{
			fmt.Sprintf("169.254.255.1:%d", private4), fmt.Sprintf("169.254.255.1:%d", public), "169.254.255.1:8080",
			fmt.Sprintf("[100::1]:%d", private6), fmt.Sprintf("[100::1]:%d", public), "[100::1]:8080",
		} {
			if seen, err := nettest.Talk(from, "tcp", netip.MustParseAddrPort(to), 300*time.Millisecond); err == nil {
				t.Errorf("%s is reached, by %s", to, seen)
			}
		}
	}
	for _, name := range []string{"all", "default", got.host} {
		raw, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/route_localnet")
		if must(t, err); strings.TrimSpace(string(raw)) != "0" {
			t.Errorf("route_localnet of %s is %s", name, raw)
		}
	}
}

// Datagrams that are longer than a packet pass by a host port, also by the node's loopback.
func TestHostPortsPassFragments(t *testing.T) {
	lan := machine(t)
	a := startAgent(t, pools)
	pod := nettest.Pod(t)
	got := a.add("c", pod, hostPorts(names))
	for _, addr := range got.addrs {
		echo(t, pod, netip.AddrPortFrom(addr, 53).String())
	}
	sent := bytes.Repeat([]byte("x"), 4000)
	for _, c := range []struct {
		from *ns.Netns
		to   string
	}{{lan, "198.51.100.8:5353"}, {lan, "[2001:db8:9::8]:5353"}, {nil, "127.0.0.1:5353"}, {nil, "[::1]:5353"}, {pod, "198.51.100.8:5353"}} {
		var conn net.Conn
		inside(t, c.from, func() (err error) { conn, err = net.Dial("udp", c.to); return err })
		conn.SetDeadline(time.Now().Add(nettest.Deadline))
		_, err := conn.Write(sent)
		must(t, err)
		buf := make([]byte, 8000)
		if n, err := conn.Read(buf); err != nil || !bytes.Equal(buf[:n], sent) {
			t.Errorf("%s: %d bytes came back: %v", c.to, n, err)
		}
		conn.Close()
	}
}

// echo answers datagrams with themselves.
func echo(t *testing.T, at *ns.Netns, address string) {
	t.Helper()
	nettest.Hear(t, at, "udp", address, func(conn net.PacketConn, packet []byte, from net.Addr) { conn.WriteTo(packet, from) })
}

// A pod that was deleted without an agent loses its host ports when the agent is back. A rebuilt
// ledger knows them all the same.
func TestHostPortsWithoutAgentOrLedger(t *testing.T) {
	lan := machine(t)
	a := newAgent(t, nil)
	a.configure("cooldown: 1ms\npools:\n- {name: default, cidrs: [10.88.0.0/24, 'fd00:88::/64']}\n")
	a.startWatched()
	pod, other := nettest.Pod(t), nettest.Pod(t)
	serve(t, pod, a.add("c", pod, hostPorts(web, names)))
	a.add("d", other, hostPorts(`{"hostPort":9000,"containerPort":80}`))
	generation := elements(t, a)
	a.kill()
	must(t, os.Remove(a.root.Ledger()))
	a.rebuildLedger()
	a.start()
	reaches(t, lan, "tcp", "198.51.100.8:8080")
	a.wantClean()
	if now := elements(t, a); now != generation {
		t.Errorf("after the rebuild the maps have\n%s\nand had\n%s", now, generation)
	}
	_, err := a.tryAdd("e", nettest.Pod(t), hostPorts(web))
	programs.WantError(t, err, 101, "8080")
	a.kill()
	a.del("c")
	a.start()
	nettest.Eventually(t, "the pod's mappings to be gone", func() bool {
		now := elements(t, a)
		return now != "" && now != generation && !strings.Contains(now, "1f90")
	})
	refuses(t, nil, "198.51.100.8:8080")
	out, err := exec.Command(a.bin+"/berth", "--root", string(a.root), "attachments", "-o", "wide").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "tcp 0.0.0.0:9000 to 10.88.0.") {
		t.Errorf("berth attachments: %v\n%s", err, out)
	}
}
