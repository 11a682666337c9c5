package conform

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/berth-net/berth/conform/oracle"
)

// flowPort is the port in the world to which the pod's datagrams go. Nobody answers there;
// the node remembers the flow all the same.
const flowPort = 9

// leakConntrack sends UDP datagrams from a pod through the node to the world, and from the
// world to the pod's port on the node. A stateful rule set tracks these flows, and the kernel
// forgets a flow by itself only when nobody has used it for 30 seconds
// (nf_conntrack_udp_timeout). A flow that the pod began ends by itself, since the pod no longer
// sends: such a flow is worth a note. A flow that a port map brought to the pod is a leak,
// since the sender may keep the flow alive.
func leakConntrack(t *T) {
	t.Warm()
	a := t.Attached()
	r := t.mustResult(a)
	addrs := r.addresses(r.of(a))
	if len(addrs) == 0 {
		t.Unsupportedf("the result of ADD lists no address of the pod's interface")
	}
	unsent := map[string]error{}
	var tracked []string
	for end := time.Now().Add(t.suite.Grace); len(tracked) == 0 && time.Now().Before(end); time.Sleep(poll) {
		for _, gateway := range []string{Gateway4, Gateway6} {
			unsent[gateway] = a.Pod.Do(func() error { return send(gateway, flowPort) })
		}
		// If no plugin maps the port, the node itself answers that nobody listens there.
		t.must(inside(t.world, func() error { return send(NodeIP4, hostPort(t.ids)) }))
		tracked = flowsOf(t.Seen(), addrs)
	}
	if len(tracked) == 0 {
		why := "the node tracks no flow of a pod"
		for _, gateway := range []string{Gateway4, Gateway6} {
			if err := unsent[gateway]; err != nil {
				why += fmt.Sprintf("; sending to %s: %v", gateway, err)
			}
		}
		t.Unsupportedf("%s", why)
	}
	t.MustDel(a)
	t.must(a.Pod.Remove())
	var left []string
	for end := time.Now().Add(t.suite.Grace); ; time.Sleep(poll) {
		if left = flowsOf(t.Seen(), addrs); len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			break
		}
	}
	var mapped, others []string
	for _, flow := range left {
		if isMapped(flow, addrs) {
			mapped = append(mapped, flow)
		} else {
			others = append(others, flow)
		}
	}
	if len(others) > 0 {
		t.Notef("after DEL the node remembers flows of the pod, until the kernel forgets them:\n%s", some(others, 20))
	}
	if len(mapped) > 0 {
		t.Leakf("after DEL the node remembers flows that were mapped to the pod:\n%s", some(mapped, 20))
	}
}

// isMapped reports whether one of the addresses answers a flow that was sent to another
// address, which is the work of a port map. The kernel would bring the sender's next datagram to
// this address, too, although the pod is gone, and each datagram keeps the flow alive.
func isMapped(flow string, addrs []net.IP) bool {
	sent, answered, _ := strings.Cut(flow, " reply ")
	for _, addr := range addrs {
		if strings.HasPrefix(answered, "src "+addr.String()+" ") {
			return !strings.Contains(sent, " dst "+addr.String()+" ")
		}
	}
	return false
}

// send sends a datagram.
func send(to string, port int) error {
	c, err := net.Dial("udp", net.JoinHostPort(to, fmt.Sprint(port)))
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte("conform"))
	return err
}

// flowsOf returns the flows that have one of the addresses.
func flowsOf(s oracle.State, addrs []net.IP) []string {
	var flows []string
	for line := range strings.Lines(s.Only("conntrack").String()) {
		for _, addr := range addrs {
			if strings.Contains(line, " src "+addr.String()+" ") || strings.Contains(line, " dst "+addr.String()+" ") {
				flows = append(flows, strings.TrimSpace(line))
				break
			}
		}
	}
	return flows
}
