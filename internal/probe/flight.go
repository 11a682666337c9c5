package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/echo"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
)

// flight is a packet that is to be sent, and the way that it and its answer should take.
type flight struct {
	name  string
	inPod bool       // it is sent from inside the pod; else by the node
	from  netip.Addr // zero: the kernel chooses
	to    netip.Addr
	tcp   *dial // nil: an echo
	toPod *Pod  // the pod that has the address `to`; nil: no pod has it

	there, back []string // hooks of the node that it passes, and that its answer passes
}

func (f flight) String() string {
	from := f.from.String()
	if !f.from.IsValid() {
		from = "node"
	}
	if f.tcp != nil {
		return fmt.Sprintf("TCP %s to %s", from, f.tcp.to)
	}
	return fmt.Sprintf("echo %s to %s", from, f.to)
}

// outcome is what became of a packet.
type outcome struct {
	err   error // nil: it was answered
	note  string
	took  time.Duration
	seen  []nft.Sight // where the node saw it and its answer, if it was not answered
	whole bool        // seen has all that the node saw
}

// says tells in words what came back.
func (o outcome) says(f flight) string {
	switch {
	case o.err == nil:
		return fmt.Sprintf("%s in %s", o.note, o.took.Round(time.Microsecond))
	case errors.Is(o.err, errAddress):
		return fmt.Sprintf("not sent: %s", o.err)
	case errors.Is(o.err, unix.EPERM):
		return fmt.Sprintf("not sent: %s", o.err)
	}
	return o.err.Error()
}

// fly sends a packet and waits for its answer.
func (p *prober) fly(f flight) outcome {
	at := p.self
	if f.inPod {
		at = p.pod
	}
	began := time.Now()
	var o outcome
	var id uint32
	if f.tcp != nil {
		id = f.tcp.segments().ID()
		o.note, o.err = f.tcp.connect(p.Wait)
	} else {
		r := echo.New(f.to, p.token)
		id, o.note = r.ID(), "reply"
		o.err = p.ping(at, f.from, r)
	}
	o.took = time.Since(began)
	if p.trail == nil {
		return o
	}
	all, whole, err := p.trail.Read()
	if o.whole = whole; err != nil {
		o.whole = false
	}
	if o.err != nil {
		o.seen = p.own(f, id, all)
	}
	return o
}

// ping sends an echo request from a namespace. The thread is in the namespace only while ping opens
// the socket.
func (p *prober) ping(at *ns.Netns, from netip.Addr, r *echo.Request) error {
	var s *echo.Socket
	err := at.Do(func() (err error) { s, err = echo.Open(from, r.To); return err })
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("%w %s", errAddress, from)
	}
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Ping(r, p.Wait)
}

// dial is a TCP connection that is to be made.
type dial struct {
	fd   int
	to   netip.AddrPort
	port uint16 // the socket's own
}

// dialFrom opens a TCP socket in a namespace, and chooses its port.
func (p *prober) dialFrom(at *ns.Netns, from netip.Addr, to netip.AddrPort) (*dial, error) {
	d := &dial{fd: -1, to: to}
	err := at.Do(func() (err error) {
		domain := unix.AF_INET6
		if to.Addr().Is4() {
			domain = unix.AF_INET
		}
		d.fd, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(d.fd, sockaddr(netip.AddrPortFrom(from, 0))); err != nil {
		d.close()
		return nil, os.NewSyscallError("bind", err)
	}
	switch sa, err := unix.Getsockname(d.fd); sa := sa.(type) {
	case *unix.SockaddrInet4:
		d.port = uint16(sa.Port)
	case *unix.SockaddrInet6:
		d.port = uint16(sa.Port)
	default:
		d.close()
		return nil, os.NewSyscallError("getsockname", err)
	}
	return d, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

func (d *dial) segments() nft.Segments { return nft.Segments{From: d.port, To: d.to.Port()} }

// connect tries to connect, and resets the connection at once. note says how the other end answered: a
// refusal is an answer, too.
func (d *dial) connect(wait time.Duration) (note string, err error) {
	// SO_SNDTIMEO bounds connect as well (socket(7)).
	tv := unix.NsecToTimeval(wait.Nanoseconds())
	if err := unix.SetsockoptTimeval(d.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
		return "", os.NewSyscallError("setsockopt", err)
	}
	switch err = unix.Connect(d.fd, sockaddr(d.to)); err {
	case nil:
		return "answer", nil
	case unix.ECONNREFUSED:
		return "refused (reset)", nil
	case unix.EINPROGRESS, unix.EAGAIN, unix.ETIMEDOUT:
		return "", fmt.Errorf("%w within %s", echo.ErrSilent, wait)
	}
	return "", os.NewSyscallError("connect", err)
}

func (d *dial) close() {
	_ = unix.SetsockoptLinger(d.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.Close(d.fd)
}
