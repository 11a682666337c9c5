package server

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/root"
)

// pipes is a listener whose connections live in memory, so that their deadlines follow a
// synctest bubble's clock.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, open := <-p
	if !open {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// inBubble runs a test with a connection to an open toy daemon, and the daemon's news, on a
// clock that advances only when all goroutines wait.
func inBubble(t *testing.T, test func(t *testing.T, conn net.Conn, news news)) {
	synctest.Test(t, func(t *testing.T) {
		s := newToy(t, root.Dir(t.TempDir()), 0)
		s.news = make(news)
		s.Open()
		l := make(pipes)
		served := make(chan error)
		go func() { served <- s.http.Serve(l) }()
		conn, theirs := net.Pipe()
		l <- theirs
		test(t, conn, s.news)
		conn.Close()
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		<-served
	})
}

// A stream lasts longer than any request's deadline: the reader gets empty lines, and then
// the news.
func TestQuietStream(t *testing.T) {
	inBubble(t, func(t *testing.T, conn net.Conn, news news) {
		io.WriteString(conn, "GET /v1/news HTTP/1.1\r\nHost: a\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		must(t, err)
		time.AfterFunc(10*time.Minute, func() { news <- "a bear" })
		lines, empty := bufio.NewScanner(resp.Body), 0
		for lines.Scan() && lines.Text() == "" {
			empty++
		}
		if !strings.Contains(lines.Text(), "a bear") || empty < 19 || empty > 20 {
			t.Errorf("after %d empty lines: %q, %v", empty, lines.Text(), lines.Err())
		}
	})
}

// If a reader stops reading a stream, the handler ends.
func TestStuckReader(t *testing.T) {
	inBubble(t, func(t *testing.T, conn net.Conn, news news) {
		io.WriteString(conn, "GET /v1/news HTTP/1.1\r\nHost: a\r\n\r\n")
		time.Sleep(keepAlive + grace + time.Second) // on the bubble's clock
		if _, err := conn.Write([]byte("x")); err == nil {
			t.Error("the connection of a reader that does not read is still open")
		}
	})
}

// The server does not wait without end for a client that stops in the middle of a header or a body.
func TestSlowClient(t *testing.T) {
	for name, test := range map[string]struct {
		sent   string
		within time.Duration
		want   string // a part of the answer; "": there is none
	}{
		"header": {"GET /v1/health HTTP/1.1\r\nHost:", headTime, ""},
		"body": {"POST /v1/toys HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{\"name\":", bodyTime,
			"its body did not arrive within 5s"},
		"next request": {"GET /v1/health HTTP/1.1\r\nHost: a\r\n\r\n", idleTime, `{"serving":true}`},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, conn net.Conn, _ news) {
				began := time.Now()
				io.WriteString(conn, test.sent)
				raw, err := io.ReadAll(conn) // until the server closes
				if err != nil || !strings.Contains(string(raw), test.want) || test.want == "" && len(raw) > 0 {
					t.Errorf("answered %q, %v", raw, err)
				}
				if took := time.Since(began); took < test.within || took > test.within+time.Second {
					t.Errorf("closed after %v, want %v", took, test.within)
				}
			})
		})
	}
}
