package hostile

import (
	"encoding/binary"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

// MPTCP options (RFC 8684, 3.1): one of a subtype that nobody has, and MP_CAPABLE of a SYN and
// of a SYN|ACK, with the pod's key.
var (
	decoy   = []byte{30, 4, 0xf0, 0}
	capable = []byte{30, 4, 0x01, 0x01}
	keyed   = append([]byte{30, 12, 0x01, 0x01}, podKey...)
	podKey  = []byte{1, 2, 3, 4, 5, 6, 7, 8}
)

// segments sends and hears a pod's TCP segments by hand; the pod's kernel resets nothing.
type segments struct {
	t *testing.T
	p *pod
	w *wire
}

func (p *pod) segments(t *testing.T) *segments {
	t.Helper()
	nettest.Run(t, p.at, "nft add table inet mute")
	nettest.Run(t, p.at, "nft add chain inet mute in { type filter hook input priority 0 ; policy drop ; }")
	w := openWire(t, p.at, true)
	t.Cleanup(func() { unix.Close(w.fd) })
	patience := unix.Timeval{Sec: int64(nettest.Deadline / time.Second)}
	must(t, unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience))
	return &segments{t, p, w}
}

func (s *segments) send(from, to uint16, flags byte, seq, acked uint32, options []byte) {
	s.w.send(ether(s.p.mac, s.w.mac, tcpOptions(s.p.ip4, node4, from, to, flags, seq, acked, options)))
}

// heard is the next segment of the node's with some flags.
func (s *segments) heard(flags byte) (from, to uint16, seq uint32, options []byte) {
	s.t.Helper()
	buf := make([]byte, 2048)
	for {
		n, _, err := unix.Recvfrom(s.w.fd, buf, 0)
		if err != nil {
			s.t.Fatalf("nothing with flags %#x: %v", flags, err)
		}
		if n < 54 || buf[23] != tcp || buf[47] != flags || [4]byte(buf[26:30]) != node4.As4() {
			continue
		}
		end := 34 + int(buf[46]>>4)*4
		return binary.BigEndian.Uint16(buf[34:]), binary.BigEndian.Uint16(buf[36:]), binary.BigEndian.Uint32(buf[38:]), buf[54:end]
	}
}

// keyIn is the node's key in the options of a SYN|ACK; nil: the node speaks no MPTCP.
func keyIn(options []byte) []byte {
	for len(options) > 1 && options[0] != 0 {
		size := 1
		if options[0] != 1 {
			size = max(int(options[1]), 1)
		}
		if options[0] == 30 && size == 12 && len(options) >= size {
			return slices.Clone(options[4:12])
		}
		options = options[min(size, len(options)):]
	}
	return nil
}

// A pod opens a connection with a program of the node by hand, or answers the program's, so
// that the node speaks MPTCP in it: with two MPTCP options where one is taken out, or in the
// ACK that follows a SYN cookie. The pod dies. The program is told that the connection is over.
func TestProgramIsToldOfForcedMultipath(t *testing.T) {
	multipath := func() (l net.ListenConfig) { l.SetMultipathTCP(true); return l }()
	over := func(t *testing.T, n *node, dead *pod, says []net.Conn) {
		t.Helper()
		n.del(dead, wait)
		for _, c := range says {
			if _, err := c.Write([]byte("for the dead pod")); err == nil {
				t.Errorf("the program is not told that its connection with %s is over", c.RemoteAddr())
			}
			c.Close()
		}
	}
	for _, way := range []struct {
		name    string
		cookies string // net.ipv4.tcp_syncookies
		options []byte // of the SYN
	}{{"two options", "1", slices.Concat(decoy, capable)}, {"after a cookie", "2", nil}} {
		t.Run(way.name, func(t *testing.T) {
			nettest.Sysctl(t, nil, "ipv4/tcp_syncookies", way.cookies)
			t.Cleanup(func() { nettest.Sysctl(t, nil, "ipv4/tcp_syncookies", "1") })
			n := newNode(t, plain)
			dead := n.add("dead")
			s := dead.segments(t)
			l, err := multipath.Listen(t.Context(), "tcp", node4.String()+":0")
			must(t, err)
			defer l.Close()
			port := uint16(l.Addr().(*net.TCPAddr).Port)
			const forced, honest = 5000, 5001
			s.send(forced, port, syn, 100, 0, way.options)
			s.send(honest, port, syn, 100, 0, nil)
			for to := uint16(0); to != honest; {
				var seq uint32
				var options []byte
				if _, to, seq, options = s.heard(syn | ack); to == honest {
					s.send(honest, port, ack, 101, seq+1, nil) // behind the other's on the same wire
				} else if key := keyIn(options); key != nil || way.options == nil {
					if key == nil {
						key = []byte{8, 7, 6, 5, 4, 3, 2, 1} // the cookie does not say which key
					}
					s.send(forced, port, ack, 101, seq+1, slices.Concat([]byte{30, 20, 0x01, 0x01}, podKey, key))
				} else {
					s.send(forced, port, ack, 101, seq+1, nil)
				}
			}
			var says []net.Conn
			for last := ""; last != net.JoinHostPort(dead.ip4.String(), "5001"); {
				c, err := l.Accept()
				must(t, err)
				says, last = append(says, c), c.RemoteAddr().String()
			}
			over(t, n, dead, says)
		})
	}
	t.Run("two options in an answer", func(t *testing.T) {
		n := newNode(t, plain)
		dead := n.add("dead")
		s := dead.segments(t)
		dialed := make(chan net.Conn, 1)
		go func() {
			var d net.Dialer
			d.SetMultipathTCP(true)
			c, err := d.Dial("tcp", net.JoinHostPort(dead.ip4.String(), "4000"))
			if err != nil {
				t.Error(err)
			}
			dialed <- c
		}()
		from, to, seq, _ := s.heard(syn)
		s.send(to, from, syn|ack, 100, seq+1, slices.Concat(decoy, keyed))
		s.send(to, from, syn|ack, 100, seq+1, nil) // the first that arrives counts
		c := <-dialed
		if c == nil {
			return
		}
		over(t, n, dead, []net.Conn{c})
	})
}
