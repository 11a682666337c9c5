package wire_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/berth-net/berth/internal/cni/wire"
)

// head is the beginning of an answer.
const head = "HTTP/1.1 200 OK\r\n"

func TestReadResponse(t *testing.T) {
	for raw, want := range map[string]wire.Response{
		head + "Content-Length: 2\r\n\r\n{}":                                                {Status: 200, Body: []byte("{}")},
		head + "content-length:2\r\nX: a:b\r\n\r\n{}and more":                               {Status: 200, Body: []byte("{}")},
		head + "Transfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n": {Status: 200, Body: []byte("abc0123456789")},
		"HTTP/1.1 503 \r\nContent-Length: 0\r\n\r\n":                                        {Status: 503},
		"HTTP/1.1 404\r\nContent-Length: 0\r\n\r\n":                                         {Status: 404},
		"HTTP/1.1 204 No Content\r\n\r\n":                                                   {Status: 204},
		head + "Content-Length: 1048576\r\n\r\n" + strings.Repeat("x", 1<<20):               {Status: 200, Body: bytes.Repeat([]byte("x"), 1<<20)},
	} {
		for name, from := range map[string]io.Reader{
			"whole":  strings.NewReader(raw),
			"drip":   iotest.OneByteReader(strings.NewReader(raw)),
			"at end": iotest.DataErrReader(strings.NewReader(raw)),
		} {
			got, err := wire.ReadResponse(from)
			if err != nil || got.Status != want.Status || !bytes.Equal(got.Body, want.Body) {
				t.Errorf("%.60q, %s: %d %.40q, %v", raw, name, got.Status, got.Body, err)
			}
		}
	}
}

func TestReadResponseRefuses(t *testing.T) {
	big := fmt.Sprintf("%x\r\n%s\r\n", 1<<19, strings.Repeat("x", 1<<19))
	for raw, want := range map[string]string{
		"":                                   "breaks off",
		"HTTP":                               "breaks off",
		head:                                 "breaks off",
		head + "Content-Length: 3\r\n\r\n{}": "breaks off",
		head + "Transfer-Encoding: chunked\r\n\r\n3\r\nab":                                "breaks off",
		head + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n":                           "breaks off",
		head + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n":                      "breaks off",
		head + "\r\nbody until the end":                                                   "no length",
		"\x16\x03\x01garbage\r\n":                                                         "byte 0x16",
		"SSH-2.0-OpenSSH\r\n":                                                             "does not begin as HTTP does",
		"HTTP/1.0 200 OK\r\n":                                                             "does not begin as HTTP does",
		"HTTP/1.1 20 OK\r\n":                                                              "does not begin as HTTP does",
		"HTTP/1.1 0200 OK\r\n":                                                            "does not begin as HTTP does",
		"HTTP/1.1 100 Continue\r\n":                                                       "does not begin as HTTP does",
		"HTTP/1.1 999 ?\r\n":                                                              "does not begin as HTTP does",
		"HTTP/1.1  200 OK\r\n":                                                            "does not begin as HTTP does",
		"HTTP/1.1 200 OK\nContent-Length: 0\n\n":                                          "byte 0x0a",
		head + "X: a\rb\r\n":                                                              "byte 0x62",
		head + "X\r\n":                                                                    "not a header",
		head + " folded: 1\r\n":                                                           "not a header",
		head + "Content-Length : 2\r\n":                                                   "not a header",
		head + ": 2\r\n":                                                                  "not a header",
		head + "Content-Length: 2\r\nContent-Length: 2\r\n":                               "bad header",
		head + "Content-Length: +2\r\n":                                                   "bad header",
		head + "Content-Length: 0x2\r\n":                                                  "bad header",
		head + "Content-Length: 2, 2\r\n":                                                 "bad header",
		head + "Content-Length: 99999999999999999999\r\n":                                 "bad header",
		head + "Content-Length: 1048577\r\n\r\n":                                          "longer than 1 MiB",
		head + "Transfer-Encoding: gzip, chunked\r\n":                                     "bad header",
		head + "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n":                  "Content-Length and chunks",
		head + "Transfer-Encoding: chunked\r\n\r\n-1\r\n":                                 "bad chunk size",
		head + "Transfer-Encoding: chunked\r\n\r\n1;x=y\r\na\r\n":                         "bad chunk size",
		head + "Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n":                           "goes on after its end",
		head + "Transfer-Encoding: chunked\r\n\r\n0\r\nTrailer: x\r\n\r\n":                "goes on after its end",
		head + "Transfer-Encoding: chunked\r\n\r\n" + big + big + "1\r\nx\r\n":            "longer than 1 MiB",
		head + strings.Repeat("X: y\r\n", 4096):                                           "longer than 16 KiB",
		head + "X: " + strings.Repeat("y", 20000):                                         "longer than 16 KiB",
		head + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1\r\nx\r\n", 1<<14): "longer than 16 KiB",
	} {
		got, err := wire.ReadResponse(strings.NewReader(raw))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %d %.40q, %v, want %s", raw, got.Status, got.Body, err, want)
		}
	}
	if _, err := wire.ReadResponse(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader(head)))); err != iotest.ErrTimeout {
		t.Errorf("a reader's error: %v", err)
	}
}

// No input makes ReadResponse panic, and net/http reads an accepted answer alike.
func FuzzReadResponse(f *testing.F) {
	for _, s := range []string{
		head + "Content-Length: 2\r\n\r\n{}", head + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.0 503 \r\nContent-Length: 0\r\n\r\n", head + "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		head + "Content-Length: 5\r\n\r\n{}", head + "Transfer-Encoding: chunked\r\n\r\nffffffff\r\n", "HTTP/1.1 200 OK\n\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := wire.ReadResponse(iotest.OneByteReader(bytes.NewReader(raw)))
		if err != nil {
			return
		}
		std, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
		if err != nil {
			if strings.Contains(err.Error(), "malformed MIME header") {
				return // net/http is stricter about names and values
			}
			t.Fatalf("accepted, but: %v", err)
		}
		body, err := io.ReadAll(std.Body)
		if err != nil || std.StatusCode != got.Status || !bytes.Equal(body, got.Body) {
			t.Fatalf("got %d %q, net/http has %d %q, %v", got.Status, got.Body, std.StatusCode, body, err)
		}
	})
}
