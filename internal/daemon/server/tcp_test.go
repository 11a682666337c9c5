package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// wantLines wants the daemon to have written n lines into its log, each with words.
func (d *toy) wantLines(t *testing.T, n int, words string) {
	t.Helper()
	got := slices.Collect(strings.Lines(d.said.take()))
	if len(got) != n || slices.ContainsFunc(got, func(line string) bool { return !strings.Contains(line, words) }) {
		t.Errorf("the log has %d lines, want %d with %q; the first ones: %q", len(got), n, words, got[:min(len(got), 3)])
	}
}

// metricsToy is a toy daemon that serves metrics by TCP.
type metricsToy struct {
	*toy
	addr string
}

func startMetrics(t *testing.T) *metricsToy {
	t.Helper()
	d := &metricsToy{toy: startToy(t)}
	addr, err := d.ServeMetrics("127.0.0.1:0")
	must(t, err)
	d.addr = addr.String()
	return d
}

// tcpClient is a connection to the metrics.
type tcpClient struct {
	net.Conn
	answers *bufio.Reader
}

// from connects from a loopback address.
func (d *metricsToy) from(t *testing.T, source string) tcpClient {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", d.addr)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return tcpClient{conn, bufio.NewReader(conn)}
}

// wantAnswer wants the next answer to have a status, and returns its body.
func (c tcpClient) wantAnswer(t *testing.T, status int) string {
	t.Helper()
	res, err := http.ReadResponse(c.answers, nil)
	must(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != status {
		t.Fatalf("%d %s, %v", res.StatusCode, body, err)
	}
	return string(body)
}

// A pod sends requests to the metrics' address that fail because of the times in their headers.
// The log has no line about them.
func TestMetricsHeedNoDeadlines(t *testing.T) {
	d := startMetrics(t)
	c := d.from(t, "127.0.0.2")
	for _, header := range []string{api.HeaderStarted, api.HeaderRunning, api.HeaderDeadline} {
		for _, at := range []string{"1", "9223372036854775807", "nonsense"} {
			_, err := fmt.Fprintf(c, "GET /v1/health HTTP/1.1\r\nHost: x\r\n%s: %s\r\n\r\n", header, at)
			must(t, err)
			c.wantAnswer(t, 200)
		}
	}
	d.wantLines(t, 0, "")
}

// A pod takes more connections to the metrics' address than there may be: with half a header,
// with requests that it does not end, with answers that it does not read. Other clients get
// their answers, on an old connection and on a new one, and the log has one line.
func TestMetricsOfOthersAreServed(t *testing.T) {
	const request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
	for how, said := range map[string]string{
		"a connection":         "",
		"half a header":        request[:len(request)-2],
		"a request":            request,
		"a request and a half": request + request[:len(request)-2],
	} {
		t.Run(how, func(t *testing.T) {
			d := startMetrics(t)
			old := d.from(t, "127.0.0.3")
			_, err := io.WriteString(old, request)
			must(t, err)
			old.wantAnswer(t, 200)
			for range 3 * maxMetricsConns {
				_, _ = io.WriteString(d.from(t, "127.0.0.2"), said) // the server may have closed it
			}
			for _, c := range []tcpClient{old, d.from(t, "127.0.0.3"), d.from(t, "127.0.0.4")} {
				_, err := io.WriteString(c, request)
				must(t, err)
				c.wantAnswer(t, 200)
			}
			d.wantLines(t, 1, "too many are open")
		})
	}
}

// Each of many sources has one connection: the oldest connection gives its place to a new connection.
func TestMetricsOfManySources(t *testing.T) {
	d := startMetrics(t)
	var all []tcpClient
	for i := range maxMetricsConns + 1 {
		all = append(all, d.from(t, fmt.Sprintf("127.0.1.%d", i+1)))
	}
	if _, err := all[0].Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the oldest connection: %v", err)
	}
	for _, c := range all[1:] {
		_, err := io.WriteString(c, "GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
		must(t, err)
		c.wantAnswer(t, 200)
	}
}

// A client says more than its request, and loses its place while the server still works at the
// answer. The work ends: a pod that repeats this does not fill the agent's memory.
func TestClosedConnectionsEndTheirRequests(t *testing.T) {
	began, ended := make(chan struct{}, 1), make(chan struct{}, 1)
	c := newConns(1, slog.New(slog.DiscardHandler))
	c.fair = true
	s := newToy(t, root.Dir(t.TempDir()), 0).newHTTP(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
	}), c)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { s.Close() })
	go func() { _ = s.Serve(l) }()
	d := metricsToy{addr: l.Addr().String()}
	more := strings.Repeat("x", 2*bufio.NewReader(nil).Size()) // some of it is left when the server has read the header
	_, err = io.WriteString(d.from(t, "127.0.0.2"), "GET / HTTP/1.1\r\nHost: x\r\n\r\n"+more)
	must(t, err)
	<-began
	d.from(t, "127.0.0.3")
	select {
	case <-ended:
	case <-time.After(nettest.Deadline):
		t.Error("the request goes on")
	}
}

// A client does not read its answer, and loses its place, or the answer takes too long. The kernel
// keeps nothing of the answer: the client hears that the connection is reset, not the rest.
func TestClosedConnectionsKeepNoAnswers(t *testing.T) {
	for _, end := range []string{"loses its place", "takes too long"} {
		t.Run(end, func(t *testing.T) {
			began := make(chan struct{}, 1)
			c := newConns(1, slog.New(slog.DiscardHandler))
			c.fair = true
			s := newToy(t, root.Dir(t.TempDir()), 0).newHTTP(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if end == "takes too long" {
					_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Millisecond))
				}
				for err := error(nil); err == nil; {
					_, err = w.Write(make([]byte, 64<<10))
					select {
					case began <- struct{}{}:
					default:
					}
				}
			}), c)
			l, err := listenTCP("127.0.0.1:0")
			must(t, err)
			ended, once := make(chan struct{}), sync.Once{}
			s.ConnState = func(conn net.Conn, state http.ConnState) {
				if c.state(conn, state); state == http.StateClosed {
					once.Do(func() { close(ended) })
				}
			}
			t.Cleanup(func() { s.Close() })
			go func() { _ = s.Serve(l) }()
			d := metricsToy{addr: l.Addr().String()}
			client := d.from(t, "127.0.0.2")
			_, err = io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			must(t, err)
			<-began
			if end == "loses its place" {
				d.from(t, "127.0.0.3")
			}
			<-ended
			if _, err := io.Copy(io.Discard, client); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("the client gets the rest, and then %v", err)
			}
		})
	}
}

// A closed connection leaves little in the kernel, and only for a short time: a client of the
// metrics that does not read its answers takes no more memory than that.
func TestMetricsConnectionsKeepLittle(t *testing.T) {
	l, err := listenTCP("127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	d := metricsToy{addr: l.Addr().String()}
	d.from(t, "127.0.0.2")
	conn, err := l.Accept()
	must(t, err)
	defer conn.Close()
	raw, err := conn.(*boundConn).SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		buffer, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
		must(t, err)
		patience, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		must(t, err)
		if buffer > 2*sendBuffer || patience != int(unsentLimit.Milliseconds()) {
			t.Errorf("the kernel keeps %d bytes for %d ms", buffer, patience)
		}
	}))
}

// The context of a connection ends with the connection, so that the server's context does not
// remember it.
func TestClosedConnectionsEndTheirContexts(t *testing.T) {
	c := newConns(1, slog.New(slog.DiscardHandler))
	c.fair = true
	conn, other := net.Pipe()
	defer conn.Close()
	defer other.Close()
	ctx := c.context(t.Context(), conn)
	c.state(conn, http.StateNew)
	if ctx.Err() != nil {
		t.Fatal("the context of an open connection has ended")
	}
	if c.state(conn, http.StateClosed); ctx.Err() == nil || len(c.aged) != 0 {
		t.Errorf("%v; %d connections are left", ctx.Err(), len(c.aged))
	}
}

// reader is a client that does not read, until it leaves.
type reader struct {
	http.ResponseWriter
	left <-chan struct{}
}

func (r reader) Write([]byte) (int, error) {
	<-r.left
	return 0, net.ErrClosed
}

// maxScrapes clients do not read their answers. Other clients get their answers, and the log says
// nothing when the clients that do not read leave.
func TestScrapesThatNobodyReads(t *testing.T) {
	d := newToy(t, root.Dir(t.TempDir()), 0)
	h := d.metrics.handler(d.log)
	scrape := func() *http.Request { return httptest.NewRequestWithContext(t.Context(), "GET", api.PathMetrics, nil) }
	left := make(chan struct{})
	var all sync.WaitGroup
	for range maxScrapes {
		all.Go(func() { h.ServeHTTP(reader{httptest.NewRecorder(), left}, scrape()) })
	}
	for range maxScrapes {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, scrape()); w.Code != 200 || !strings.Contains(w.Body.String(), "go_goroutines") {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	close(left)
	all.Wait()
	d.wantLines(t, 0, "")
}
