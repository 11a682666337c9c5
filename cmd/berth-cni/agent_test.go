package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/root"
)

// agent pretends to be berthd: it answers what it is told to, and remembers
// what it was asked.
type agent struct {
	root string

	mu       sync.Mutex
	server   *http.Server
	status   string // of HTTP, or "raw"
	body     string
	requests []string
}

// start makes the agent listen on the root's socket. A second call of start changes nothing.
func (a *agent) start() error { return a.startWith(a) }

// startWith is start for an agent whose answers h gives.
func (a *agent) startWith(h http.Handler) error {
	if a.server != nil {
		return nil
	}
	dir := root.Dir(a.root)
	if err := os.MkdirAll(dir.Run(), 0o700); err != nil {
		return err
	}
	os.Remove(dir.Socket())
	// A root may be too long for a socket's address, so the address names the folder by a descriptor.
	fd, err := os.Open(dir.Run())
	if err != nil {
		return err
	}
	defer fd.Close()
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", fd.Fd(), root.SocketName))
	if err != nil {
		return err
	}
	// A closing listener must not remove its file by this address: by then another script may have
	// the descriptor's number for its own folder.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	a.server = &http.Server{Handler: h}
	go a.server.Serve(l)
	return nil
}

func (a *agent) stop() { a.server.Close() }

// answer sets the agent's answer from now on.
func (a *agent) answer(status, body string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status, a.body = status, body
}

// last returns the last request, in a form that scripts can compare.
func (a *agent) last() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.requests) == 0 {
		return ""
	}
	return a.requests[len(a.requests)-1]
}

// numbers matches the parts of a request that differ from run to run.
var numbers = regexp.MustCompile(`("(dev|ino|id)":)[0-9]+`)

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		body = []byte("cut off: " + err.Error())
	}
	seen := fmt.Sprintf("%s %s\nlimit %s\n", r.Method, r.RequestURI, limit(r.Header))
	if trace := r.Header.Get("Traceparent"); trace != "" {
		seen += "trace " + trace + "\n"
	}
	if len(body) > 0 {
		text := strings.ReplaceAll(string(body), a.root, "$ROOT")
		seen += numbers.ReplaceAllString(text, "${1}N") + "\n"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests = append(a.requests, seen)
	if a.status == "raw" {
		c, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			io.WriteString(c, strings.ReplaceAll(a.body, "\n", "\r\n"))
			c.Close()
		}
		return
	}
	status, _ := strconv.Atoi(a.status)
	w.WriteHeader(status)
	io.WriteString(w, a.body)
}

// limit returns how long a request may take, or what is wrong with its times.
func limit(h http.Header) string {
	started, err := strconv.ParseInt(h.Get("Berth-Started"), 10, 64)
	if now := boottime.Now(); err != nil || started > now || now-started > 60e9 {
		return fmt.Sprintf("from %q, at %d", h.Get("Berth-Started"), now)
	}
	deadline, err := strconv.ParseInt(h.Get("Berth-Deadline"), 10, 64)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%ds", (deadline-started)/1e9)
}
