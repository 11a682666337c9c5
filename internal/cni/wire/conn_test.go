package wire_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/cni/wire"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// soon returns a deadline that has to end a call, late a deadline that must not end a call.
func soon() int64 { return boottime.Now() + int64(100*time.Millisecond) }
func late() int64 { return boottime.Now() + int64(time.Minute) }

// listen opens an agent's socket, also if the socket's path is too long for a socket address.
func listen(t *testing.T, dir root.Dir) *net.UnixListener {
	t.Helper()
	nettest.Must(t, os.MkdirAll(dir.Run(), 0o700))
	t.Chdir(dir.Run())
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: root.SocketName})
	nettest.Must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// serve answers each connection with f.
func serve(l net.Listener, f func(net.Conn)) {
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); f(c) }()
		}
	}()
}

// net/http reads what Do sends as the request that was meant.
func TestDo(t *testing.T) {
	trace := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for name, dir := range map[string]string{"short": "r", "long": strings.Repeat("long/", 40)} {
		t.Run(name, func(t *testing.T) {
			dir := root.Dir(filepath.Join(t.TempDir(), dir))
			l := listen(t, dir)
			requests := make(chan *http.Request, 1)
			serve(l, func(c net.Conn) {
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					t.Errorf("reading the request: %v", err)
					return
				}
				body, _ := io.ReadAll(r.Body)
				r.Header.Set("Body", string(body))
				requests <- r
				io.WriteString(c, "HTTP/1.1 206 Partial Content\r\nContent-Length: 2\r\n\r\nhi")
			})
			deadline := late()
			resp, err := wire.Do(dir, wire.Request{Method: "POST", Target: "/v1/x?a=b", Body: []byte("body"), Started: 5, Running: 7, Deadline: deadline, Trace: trace})
			if err != nil || resp.Status != 206 || string(resp.Body) != "hi" {
				t.Fatalf("%+v, %v", resp, err)
			}
			r := <-requests
			for _, want := range [][2]string{{r.Method, "POST"}, {r.RequestURI, "/v1/x?a=b"}, {r.Header.Get("Body"), "body"},
				{r.Header.Get("Berth-Started"), "5"}, {r.Header.Get("Berth-Running"), "7"}, {r.Header.Get("Traceparent"), trace}, {r.Header.Get("Content-Type"), "application/json"}} {
				if want[0] != want[1] {
					t.Errorf("got %q, want %q", want[0], want[1])
				}
			}
			if !r.Close {
				t.Error("no Connection: close")
			}
			// A trace that could end the header is not sent.
			if _, err := wire.Do(dir, wire.Request{Method: "GET", Target: "/", Deadline: deadline, Trace: trace[:50] + "\r\nX: y"}); err != nil {
				t.Fatal(err)
			}
			if r := <-requests; r.Header.Get("Traceparent") != "" || r.Header.Get("X") != "" || r.Header.Get("Content-Length") != "" {
				t.Errorf("headers %v", r.Header)
			}
		})
	}
}

// Do does not block beyond the deadline, wherever the other side stops.
func TestDeadline(t *testing.T) {
	big := make([]byte, 8<<20)
	for name, f := range map[string]func(net.Conn){
		"never answers": func(c net.Conn) { io.Copy(io.Discard, c) },
		"never reads":   func(c net.Conn) { c.(*net.UnixConn).SetReadBuffer(1); <-t.Context().Done() },
		"stops half way": func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}")
			io.Copy(io.Discard, c)
		},
		"drips": func(c net.Conn) { // each byte comes in time, but never all of them
			for range time.Tick(5 * time.Millisecond) {
				if _, err := io.WriteString(c, "H"); err != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := root.Dir(t.TempDir())
			serve(listen(t, dir), f)
			var body []byte
			if name == "never reads" {
				body = big
			}
			resp, err := wire.Do(dir, wire.Request{Method: "POST", Target: "/", Body: body, Deadline: soon()})
			if !errors.Is(err, wire.ErrDeadline) {
				t.Errorf("%+v, %v, want ErrDeadline", resp, err)
			}
		})
	}
	t.Run("backlog full", func(t *testing.T) {
		dir := root.Dir(t.TempDir())
		l := listen(t, dir)
		raw, err := l.SyscallConn()
		nettest.Must(t, err)
		raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), 0) }) // room for one
		nettest.Must(t, err)
		first, err := net.Dial("unix", dir.Socket())
		nettest.Must(t, err)
		defer first.Close()
		if _, err := wire.Do(dir, wire.Request{Method: "GET", Target: "/", Deadline: soon()}); !errors.Is(err, wire.ErrDeadline) {
			t.Errorf("%v, want ErrDeadline", err)
		}
	})
	t.Run("passed already", func(t *testing.T) {
		if _, err := wire.Do(root.Dir(t.TempDir()), wire.Request{Method: "GET", Target: "/", Deadline: boottime.Now() - 1}); !errors.Is(err, wire.ErrDeadline) {
			t.Errorf("%v, want ErrDeadline", err)
		}
	})
}

// An agent may refuse a request before it has read the whole request, and close the connection.
func TestEarlyAnswer(t *testing.T) {
	dir := root.Dir(t.TempDir())
	serve(listen(t, dir), func(c net.Conn) {
		io.WriteString(c, "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
		c.(*net.UnixConn).CloseRead()
		c.(*net.UnixConn).CloseWrite()
		io.Copy(io.Discard, c)
	})
	resp, err := wire.Do(dir, wire.Request{Method: "POST", Target: "/", Body: make([]byte, 8<<20), Deadline: late()})
	if err != nil || resp.Status != 503 || string(resp.Body) != "busy" {
		t.Errorf("%+v, %v", resp, err)
	}
}

func TestNobodyThere(t *testing.T) {
	dir := root.Dir(t.TempDir())
	request := wire.Request{Method: "GET", Target: "/", Deadline: late()}
	if _, err := wire.Do(dir, request); !errors.Is(err, unix.ENOENT) {
		t.Errorf("no socket: %v", err)
	}
	if _, err := wire.Do(dir+root.Dir(strings.Repeat("/long", 40)), request); !errors.Is(err, unix.ENOENT) {
		t.Errorf("no long socket: %v", err)
	}
	l := listen(t, dir)
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err := wire.Do(dir, request); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestReadBefore(t *testing.T) {
	r, w, err := os.Pipe()
	nettest.Must(t, err)
	defer r.Close()
	fd, buf := int(r.Fd()), make([]byte, 10)
	if n, err := wire.ReadBefore(fd, buf, soon()); err != wire.ErrDeadline || n != 0 {
		t.Errorf("nothing to read: %d, %v", n, err)
	}
	w.WriteString("abc")
	if n, err := wire.ReadBefore(fd, buf, late()); err != nil || string(buf[:n]) != "abc" {
		t.Errorf("something to read: %q, %v", buf[:n], err)
	}
	w.Close()
	if _, err := wire.ReadBefore(fd, buf, late()); err != io.EOF {
		t.Errorf("end: %v", err)
	}
	if _, err := wire.ReadBefore(1<<20, buf, late()); !errors.Is(err, unix.EBADF) {
		t.Errorf("no such descriptor: %v", err)
	}
}
