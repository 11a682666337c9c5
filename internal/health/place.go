package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/ns"
)

// place is a network namespace without a path, in which a responder answers. The agent's threads go in only to make sockets,
// which stay there; goroutines of the agent serve them. So there is no further process that somebody would have to supervise.
type place struct {
	owner     hold.ID // of the link
	addresses ipam.Claim
	answered  map[netip.Addr]bool // where the node has got an answer

	mu     sync.RWMutex // netns is open while somebody reads with it
	netns  *ns.Netns    // nil: closed
	server *http.Server
	served chan struct{} // closed when the server has ended
}

// pingGroups is the sysctl that says which groups may open ICMP sockets. The agent lacks CAP_NET_RAW. The namespace is
// its own, so it may say there that root's group is one of these.
const pingGroups = "ipv4/ping_group_range"

// open makes a place, in which a responder answers in a node's name at a port, as soon as it has a link.
func open(node string, port int, c ipam.Claim) (*place, error) {
	n, err := ns.Unbound()
	if err != nil {
		return nil, err
	}
	p := &place{addresses: c, answered: map[netip.Addr]bool{}, netns: n, served: make(chan struct{})}
	var l net.Listener
	err = n.Do(func() error {
		group := strconv.Itoa(os.Getegid())
		if err := ns.SetSysctl(pingGroups, group+" "+group); err != nil {
			return err
		}
		config := net.ListenConfig{}
		config.SetMultipathTCP(false)
		l, err = config.Listen(context.Background(), "tcp", net.JoinHostPort("", strconv.Itoa(port)))
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the responder's network namespace: %w", err), n.Close())
	}
	p.server = &http.Server{Handler: responder(node), ReadTimeout: answering, WriteTimeout: answering, MaxHeaderBytes: 4 << 10}
	p.server.SetKeepAlivesEnabled(false)
	go func() {
		defer close(p.served)
		_ = p.server.Serve(&bounded{Listener: l, places: make(chan struct{}, guests)}) // its end shows when it does not answer
	}()
	return p, nil
}

// ref names the namespace by the agent's own descriptor: the path ends with the agent, or with close.
func (p *place) ref() ns.Ref {
	r := p.netns.Ref()
	r.Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.netns.Fd())
	return r
}

// close ends the responder and its namespace, and with that the link.
func (p *place) close() error {
	if p == nil {
		return nil
	}
	err := p.server.Close()
	<-p.served
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.netns != nil {
		err = errors.Join(err, p.netns.Close())
	}
	p.netns = nil
	return err
}

// socket makes a socket in the place, which does not block.
func (p *place) socket(family, typ, proto int) (f *os.File, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.netns == nil {
		return nil, net.ErrClosed
	}
	err = p.netns.Do(func() error {
		fd, err := unix.Socket(family, typ|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
		if err == nil {
			f = os.NewFile(uintptr(fd), "socket")
		}
		return os.NewSyscallError("socket", err)
	})
	return f, err
}

const (
	// answering is how long a client may take to ask and to hear the answer.
	answering = 2 * time.Second
	// guests is how many connections the responder has at once: pods can reach it, too.
	guests = 128
)

// pathHello is what the responder answers at, with its node's name.
const pathHello = "/hello"

func responder(node string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pathHello, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(node + "\n")) // a client that left needs no answer
	})
	return mux
}

// bounded is a listener that lets no more connections in than it has places.
type bounded struct {
	net.Listener
	places chan struct{}
}

func (b *bounded) Accept() (net.Conn, error) {
	b.places <- struct{}{}
	conn, err := b.Listener.Accept()
	if err != nil {
		<-b.places
		return nil, err
	}
	return &guest{Conn: conn, leave: sync.OnceFunc(func() { <-b.places })}, nil
}

// guest is a connection that gives its place back when it is closed.
type guest struct {
	net.Conn
	leave func()
}

func (g *guest) Close() error {
	defer g.leave()
	return g.Conn.Close()
}
