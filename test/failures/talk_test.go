package failures

import (
	"net"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// answer answers packets to port 53 of an address of a pod, or of the node (nil), and sends the
// packets' sources to heard.
func answer(t *testing.T, at *ns.Netns, addr string) (heard chan string) {
	t.Helper()
	heard = make(chan string, 1000)
	nettest.Hear(t, at, "udp", addr+":53", func(conn net.PacketConn, packet []byte, from net.Addr) {
		heard <- from.String()
		_, _ = conn.WriteTo(packet[:1], from)
	})
	return heard
}

// drain returns what has been heard since drain was last called.
func drain(heard chan string) (all []string) {
	for len(heard) > 0 {
		all = append(all, <-heard)
	}
	return all
}

// flow is a UDP socket that talks to one address.
type flow struct {
	net.Conn
	t *testing.T
}

func dial(t *testing.T, from *ns.Netns, addr string) flow {
	t.Helper()
	c := flow{t: t}
	err := nettest.DoIn(from, func() (err error) {
		c.Conn, err = net.Dial("udp", addr+":53")
		return err
	})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// send sends some packets. It is no error if nobody is there.
func (c flow) send() {
	for range 5 {
		_, _ = c.Write([]byte("?"))
	}
}

// wantAnswer sends until an answer comes.
func (c flow) wantAnswer() {
	c.t.Helper()
	nettest.Eventually(c.t, "an answer to "+c.LocalAddr().String(), func() bool {
		c.send()
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := c.Read(make([]byte, 16))
		return err == nil
	})
}
