package programs

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// Conversation is a TCP connection between the test's node and a pod.
type Conversation struct {
	t         testing.TB
	near, far net.Conn
}

// Converse connects to a pod's first address. The connection ends with the test.
func Converse(t testing.TB, pod *ns.Netns, at Attached) Conversation {
	t.Helper()
	return ConverseBy(t, pod, at, netip.AddrPortFrom(at.Addrs[0], 7))
}

// ConverseBy is Converse by a port of the node that is mapped to the pod's port 7 of TCP.
func ConverseBy(t testing.TB, pod *ns.Netns, at Attached, by netip.AddrPort) Conversation {
	t.Helper()
	var l net.Listener
	nettest.Must(t, pod.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(at.Addrs[0].String(), "7"))
		return err
	}))
	defer l.Close()
	near, err := net.DialTimeout("tcp", by.String(), nettest.Deadline)
	nettest.Must(t, err)
	t.Cleanup(func() { near.Close() })
	far, err := l.Accept()
	nettest.Must(t, err)
	t.Cleanup(func() { far.Close() })
	return Conversation{t, near, far}
}

// GoesOn fails the test if one side does not hear the other any more.
func (c Conversation) GoesOn(when string) {
	c.t.Helper()
	for _, way := range [][2]net.Conn{{c.near, c.far}, {c.far, c.near}} {
		nettest.Must(c.t, way[1].SetDeadline(time.Now().Add(nettest.Deadline)))
		_, _ = fmt.Fprintln(way[0], when) // an error shows on the other side
		if line, err := bufio.NewReader(way[1]).ReadString('\n'); line != when+"\n" {
			c.t.Fatalf("%s, the pod's connection ends: heard %q: %v", when, line, err)
		}
	}
}
