package conform

import (
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
)

// portChecks are about ports of the node that are mapped to containers. They are made only if a plugin
// of the list declares the capability portMappings.
var portChecks = []Check{
	{
		Name: "ports/reached", Level: Own, Spec: "the suite's own: CNI's CONVENTIONS.md, Dynamic Plugin specific fields: portMappings",
		Says:  "a port of the node that the runtime maps leads from outside to the container, by TCP and by UDP; a hostIP's port does so by that address alone",
		Needs: []string{"add/result"}, run: portsReached,
	},
	{
		Name: "ports/conflict", Level: Own, Spec: "the suite's own",
		Says:  "a pod that asks for another pod's port of the node does not take the port from the other pod, and leaves nothing",
		Needs: []string{"ports/reached", "basic/second-pod"}, run: portsConflict,
	},
	{
		Name: "ports/others", Level: Own, Spec: "the suite's own (CVE-2025-67499)",
		Says:  "packets of a pod or of the node to a mapped port of another machine's address reach that machine, and not the container",
		Needs: []string{"ports/reached"}, run: portsOthers,
	},
}

// The ports of these checks. No program listens at them in a fresh network namespace.
const (
	mappedPort  = 18080 // of all addresses of the node
	hostIPPort  = 18081 // of one address
	unmapped    = 18090
	podPort     = 8000
	portWait    = 5 * time.Second // for an answer that has to come
	portOneTime = 2 * time.Second // for one try
)

// portFamily has the addresses of a family.
type portFamily struct {
	name   string
	node   string // an address that every node has
	hostIP string // an address that the check gives to the node
	bits   int    // the prefix length of node and of hostIP
	other  string // an address of another machine, behind the gateway
}

var portFamilies = []portFamily{
	{"IPv4", NodeIP4, "192.0.2.3", 24, "203.0.113.5"},
	{"IPv6", NodeIP6, "2001:db8:ffff::3", 64, "2001:db8:5::5"},
}

// mappings returns a runtime's mappings of a port to podPort, for TCP and UDP.
func mappings(port int, hostIP string) (all []any) {
	for _, protocol := range []string{"tcp", "udp"} {
		m := map[string]any{"hostPort": port, "containerPort": podPort, "protocol": protocol}
		if hostIP != "" {
			m["hostIP"] = hostIP
		}
		all = append(all, m)
	}
	return all
}

// exposed attaches a pod with mappings, and starts servers in the pod that tell the attachment's ID. It
// returns the families in which the pod has addresses.
func (t *T) exposed(mappings []any) (*Attachment, []portFamily) {
	a := t.NewAttachment()
	a.Runtime["portMappings"] = mappings
	t.MustAdd(a)
	t.tellAll(a)
	r := t.mustResult(a)
	var families []portFamily
	for i, f := range portFamilies {
		if slices.ContainsFunc(r.addresses(r.of(a)), func(ip net.IP) bool { return (ip.To4() != nil) == (i == 0) }) {
			families = append(families, f)
		}
	}
	if len(families) == 0 {
		t.Unsupportedf("the result of ADD lists no address of the pod's interface")
	}
	return a, families
}

func portsReached(t *T) {
	t.needCapability("portMappings")
	for _, f := range portFamilies {
		t.must(t.Node.Do(func() error { return configure(Uplink, fmt.Sprintf("%s/%d", f.hostIP, f.bits)) }))
	}
	a, families := t.exposed(mappings(mappedPort, ""))
	for _, f := range families {
		for _, network := range []string{"tcp", "udp"} {
			t.wantAnswer(t.world, "outside", network, address(f.node, mappedPort), a.ID)
			t.wantAnswer(t.world, "outside", network, address(f.hostIP, mappedPort), a.ID)
		}
	}
	t.MustDel(a)
	for _, f := range families {
		a, _ := t.exposed(mappings(hostIPPort, f.hostIP))
		for _, network := range []string{"tcp", "udp"} {
			t.wantAnswer(t.world, "outside", network, address(f.hostIP, hostIPPort), a.ID)
			if got, err := ask(t.world, network, address(f.node, hostIPPort), portOneTime); err == nil {
				t.Failf("port %d of hostIP %s leads by the node's other address %s to %s, too (%s)", hostIPPort, f.hostIP, f.node, got, network)
			}
		}
		t.MustDel(a)
	}
}

func portsConflict(t *T) {
	t.needCapability("portMappings")
	t.needSecondPod()
	t.Warm()
	a, families := t.exposed(mappings(mappedPort, ""))
	keeps := func() {
		for _, network := range []string{"tcp", "udp"} {
			t.wantAnswer(t.world, "outside", network, address(families[0].node, mappedPort), a.ID)
		}
	}
	keeps()
	before := t.Seen()
	b := t.NewAttachment()
	b.Runtime["portMappings"] = mappings(mappedPort, "")
	if got := t.Add(b); got.OK() {
		t.tellAll(b)
		t.Notef("ADD of a second pod with the same port of the node succeeds, and the first pod has to keep it")
	}
	keeps()
	if got := t.Del(b); !got.OK() {
		t.Failf("DEL of a second pod with the same port of the node fails: %s", got)
	}
	keeps()
	t.must(b.Pod.Remove())
	t.WantNothingNew(before, "ADD and DEL of a second pod with the same port of the node")
	t.MustDel(a)
}

func portsOthers(t *T) {
	t.needCapability("portMappings")
	t.must(inside(t.world, func() error {
		for _, f := range portFamilies {
			if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(f.node)}); err != nil { // to pods that are not masqueraded
				return fmt.Errorf("routing to the node: %w", err)
			}
		}
		return configure("lo", portFamilies[0].other+"/32", portFamilies[1].other+"/128")
	}))
	const there = "somebody else"
	for _, f := range portFamilies {
		t.tell(t.world, f.other, mappedPort, there)
		t.tell(t.world, f.other, unmapped, there)
	}
	a, families := t.exposed(mappings(mappedPort, ""))
	tried := 0
	for who, from := range map[string]int{"the pod": a.Pod.fd, "the node": t.fd} {
		for _, f := range families {
			for _, network := range []string{"tcp", "udp"} {
				if _, err := t.answer(from, network, address(f.other, unmapped)); err != nil {
					t.Notef("%s reaches nobody beyond the node by %s, %s: %v", who, f.name, network, err)
					continue
				}
				tried++
				t.wantAnswer(from, who, network, address(f.other, mappedPort), there)
			}
		}
	}
	if tried == 0 {
		t.Unsupportedf("neither the pod nor the node reaches anybody beyond the node")
	}
	t.MustDel(a)
}

func address(ip string, port int) string { return net.JoinHostPort(ip, fmt.Sprint(port)) }

// wantAnswer asks from a network namespace, and fails and ends the check unless the server called want
// answers.
func (t *T) wantAnswer(from int, who, network, to, want string) {
	if got, err := t.answer(from, network, to); err != nil {
		t.Fatalf("from %s, %s to %s does not come to %s: %v", who, network, to, want, err)
	} else if got != want {
		t.Fatalf("from %s, %s to %s comes to %s, not to %s", who, network, to, got, want)
	}
}

// answer asks until an answer comes, for portWait at most.
func (t *T) answer(from int, network, to string) (got string, err error) {
	for end := time.Now().Add(portWait); ; time.Sleep(poll) {
		if got, err = ask(from, network, to, portOneTime); err == nil || time.Now().After(end) {
			return got, err
		}
		t.must(t.ctx.Err())
	}
}

// ask sends from a network namespace to a server of tell, and returns the server's answer.
func ask(from int, network, to string, wait time.Duration) (string, error) {
	var c net.Conn
	end := time.Now().Add(wait)
	if err := inside(from, func() (err error) { c, err = net.DialTimeout(network, to, wait); return err }); err != nil {
		return "", err
	}
	defer c.Close()
	buf := make([]byte, 100)
	for { // ask again if no answer comes, because a datagram may get lost
		if _, err := c.Write([]byte("who?")); err != nil {
			return "", err
		}
		if err := c.SetReadDeadline(time.Now().Add(wait / 4)); err != nil {
			return "", err
		}
		n, err := c.Read(buf)
		if slow, ok := err.(net.Error); !ok || !slow.Timeout() || time.Now().After(end) {
			return string(buf[:n]), err
		}
	}
}

// tellAll serves at podPort of each address of a pod, also of an address that is not ready yet,
// and tells every client the attachment's ID.
func (t *T) tellAll(a *Attachment) {
	for _, any := range []string{"0.0.0.0", "::"} {
		t.tell(a.Pod.fd, any, podPort, a.ID)
	}
}

// tell serves TCP and UDP at a port of a network namespace, until the check ends, and tells every
// client the name of the server.
func (t *T) tell(at int, ip string, port int, who string) {
	var l net.Listener
	var p net.PacketConn
	// Without the family, package net would listen on 0.0.0.0 instead of :: if lo is down.
	family := "4"
	if net.ParseIP(ip).To4() == nil {
		family = "6"
	}
	t.must(inside(at, func() (err error) {
		if l, err = net.Listen("tcp"+family, address(ip, port)); err == nil {
			t.serving = append(t.serving, l)
			p, err = net.ListenPacket("udp"+family, address(ip, port))
		}
		return err
	}))
	t.serving = append(t.serving, p)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(portWait))
				_, _ = c.Read(make([]byte, 100)) // if data were unread, Close would reset the connection
				_, _ = c.Write([]byte(who))
			}()
		}
	}()
	go func() {
		buf := make([]byte, 100)
		for {
			_, from, err := p.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = p.WriteTo([]byte(who), from)
		}
	}()
}
