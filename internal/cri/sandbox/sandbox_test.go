package sandbox

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/cri/critest"
	"github.com/berth-net/berth/internal/nettest"
)

// A runtime's sandboxes are listed as gRPC's own library serves them: none, some, and as many as make an answer of several frames
// of HTTP/2.
func TestList(t *testing.T) {
	r := critest.Serve(t)
	list := func() []Sandbox {
		t.Helper()
		all, err := List(t.Context(), Endpoint(r.Socket))
		nettest.Must(t, err)
		slices.SortFunc(all, func(a, b Sandbox) int { return strings.Compare(a.ID, b.ID) })
		return all
	}
	if all := list(); len(all) != 0 {
		t.Errorf("a runtime without sandboxes has %v", all)
	}
	r.Put("a1", "default", "web-0", "u1", true)
	r.Put("b2", "prod", "db", "u2", false)
	want := []Sandbox{{"a1", true, "default", "web-0", "u1"}, {"b2", false, "prod", "db", "u2"}}
	if all := list(); !slices.Equal(all, want) {
		t.Errorf("the sandboxes are %v, want %v", all, want)
	}
	for i := range 2000 {
		r.Put(fmt.Sprintf("c%064d", i), "default", fmt.Sprintf("pod-%d", i), fmt.Sprintf("uid-%d", i), true)
	}
	if all := list(); len(all) != 2002 || all[1001].Name != "pod-999" {
		t.Errorf("%d sandboxes of 2002, and one is %v", len(all), all[1001])
	}
}

// A runtime that refuses, is not there, hangs, or speaks something else is an error that says so, and never an empty list.
func TestListFails(t *testing.T) {
	r := critest.Serve(t)
	r.Fail("the CRI service is not initialized: 100%")
	refused := func() error { _, err := List(t.Context(), Endpoint(r.Socket)); return err }()
	r.Fail("")
	r.Hang(true)
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, hung := List(short, Endpoint(r.Socket))
	none := filepath.Join(t.TempDir(), "none.sock")
	nettest.Must(t, os.WriteFile(none+".txt", nil, 0o600))
	at := func(socket string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := List(ctx, Endpoint(socket))
		return err
	}
	for _, c := range []struct {
		what string
		err  error
		want string
	}{
		{"a runtime that refuses", refused, "the CRI service is not initialized: 100% (gRPC's Unavailable)"},
		{"a runtime that hangs", hung, "context deadline exceeded"},
		{"no socket", at(none), "no such file or directory"},
		{"a file that is no socket", at(none + ".txt"), "connection refused"},
		{"a server that hangs before HTTP/2", at(speaks(t, "")), "context deadline exceeded"},
		{"garbage", at(speaks(t, "\x00garbage\r\n\r\n")), "asking the container runtime at unix:///"},
		{"HTTP/1", at(speaks(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")), "asking the container runtime at unix:///"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: the error is %v, want %q", c.what, c.err, c.want)
		}
	}
}

// speaks serves a text to everybody, and then hangs.
func speaks(t *testing.T, text string) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "garbage.sock")
	l, err := net.Listen("unix", socket)
	nettest.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
			_, _ = bufio.NewReader(c).ReadByte()
			_, _ = c.Write([]byte(text))
		}
	}()
	return socket
}

// An answer that has a sandbox without an ID, or that is larger than the kubelet would take, is an error.
func TestDamagedAnswer(t *testing.T) {
	r := critest.Serve(t)
	r.Put("", "default", "web-0", "u1", true)
	if all, err := List(t.Context(), Endpoint(r.Socket)); err == nil || !strings.Contains(err.Error(), "without an ID") {
		t.Errorf("a sandbox without an ID: %v, %v", all, err)
	}
	r.Remove("")
	r.Put("a1", "default", strings.Repeat("x", mostBytes), "u1", true)
	if all, err := List(t.Context(), Endpoint(r.Socket)); err == nil || !strings.Contains(err.Error(), "larger than max") {
		t.Errorf("an answer of more than %d bytes: %d sandboxes, %v", mostBytes, len(all), err)
	}
}

// An endpoint is a socket's path, with or without unix://.
func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"unix:///run/crio/crio.sock": "/run/crio/crio.sock", "/run/a//b.sock": "/run/a/b.sock",
		"": "", "run/a.sock": "", "unix://run/a.sock": "", "tcp://127.0.0.1:1": "", "npipe:////./pipe/x": "",
	} {
		if e, err := Parse(text); string(e) != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q, %v", text, e, err)
		}
	}
}

// The only runtime that has a socket is asked; none or several are an error, which says so.
func TestFind(t *testing.T) {
	a, b, dir := critest.Serve(t).Socket, critest.Serve(t).Socket, t.TempDir()
	if e, err := find([]string{dir, dir + "/none", a}); err != nil || string(e) != a {
		t.Errorf("the only runtime is %q, %v", e, err)
	}
	if _, err := find([]string{a, b}); err == nil || !strings.Contains(err.Error(), "several") {
		t.Errorf("of two runtimes: %v", err)
	}
	if _, err := find([]string{dir}); err == nil || !strings.Contains(err.Error(), "no container runtime has a socket") {
		t.Errorf("of none: %v", err)
	}
}
