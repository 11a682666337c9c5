package wire

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/berth-net/berth/api"
)

// Bounds of an answer, in bytes.
const (
	maxHead = 16 << 10    // status line and headers, or the size lines of all chunks
	maxBody = api.MaxBody // the plugin's answers are far smaller
)

var (
	errCut  = errors.New("the answer breaks off")
	errHead = errors.New("the answer's head is longer than 16 KiB")
	errBody = errors.New("the answer's body is longer than 1 MiB")
)

// Response is an agent's answer.
type Response struct {
	Status int
	Body   []byte
}

// ReadResponse reads one HTTP/1.1 answer (RFC 9112), strictly: anything unexpected is an
// error, because a plugin must not take a failure for a success. A body needs a
// Content-Length or chunks: without a length, a body that was cut off would look whole.
func ReadResponse(from io.Reader) (Response, error) {
	r := reader{from: from}
	status, err := r.statusLine()
	if err != nil {
		return Response{}, err
	}
	length, chunked, err := r.headers()
	if err != nil {
		return Response{}, err
	}
	resp := Response{Status: status}
	switch {
	case status == 204 || status == 304: // never have a body
	case chunked && length >= 0:
		err = errors.New("the answer has both a Content-Length and chunks")
	case chunked:
		resp.Body, err = r.chunks()
	case length >= 0:
		resp.Body, err = r.take(nil, length)
	default:
		err = errors.New("the answer's body has no length")
	}
	if err != nil {
		return Response{}, err
	}
	return resp, nil
}

// reader reads lines and bodies.
type reader struct {
	from  io.Reader
	ahead []byte // bytes that were read and not yet used
	buf   [4096]byte
	lines int // bytes of lines so far
}

// more reads ahead. The end of the input is an error.
func (r *reader) more() error {
	for range 100 { // as bufio: a reader that keeps returning nothing is broken
		n, err := r.from.Read(r.buf[:])
		if n > 0 {
			r.ahead = r.buf[:n]
			return nil
		}
		if err == io.EOF {
			return errCut
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// line returns the next line without its CRLF.
func (r *reader) line() (string, error) {
	var line []byte
	for {
		if len(r.ahead) == 0 {
			if err := r.more(); err != nil {
				return "", err
			}
		}
		c := r.ahead[0]
		r.ahead = r.ahead[1:]
		if r.lines++; r.lines > maxHead {
			return "", errHead
		}
		switch {
		case c == '\n' && len(line) > 0 && line[len(line)-1] == '\r':
			return string(line[:len(line)-1]), nil
		case c == '\n', len(line) > 0 && line[len(line)-1] == '\r', c < ' ' && c != '\r' && c != '\t':
			return "", fmt.Errorf("the answer's head contains byte %#02x", c)
		}
		line = append(line, c)
	}
}

// take appends the next n bytes to body.
func (r *reader) take(body []byte, n int) ([]byte, error) {
	if n > maxBody-len(body) {
		return nil, errBody
	}
	for n > 0 {
		if len(r.ahead) == 0 {
			if err := r.more(); err != nil {
				return nil, err
			}
		}
		part := r.ahead[:min(n, len(r.ahead))]
		body = append(body, part...)
		r.ahead = r.ahead[len(part):]
		n -= len(part)
	}
	return body, nil
}

// statusLine reads HTTP/1.1 200 OK.
func (r *reader) statusLine() (int, error) {
	line, err := r.line()
	if err != nil {
		return 0, err
	}
	proto, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(rest, " ")
	status, err := strconv.ParseUint(code, 10, 16)
	if proto != "HTTP/1.1" || err != nil || len(code) != 3 || status < 200 || status > 599 {
		return 0, fmt.Errorf("the answer does not begin as HTTP does: %.60q", line)
	}
	return int(status), nil
}

// headers reads the header fields up to the empty line. length is -1 if there is no
// Content-Length.
func (r *reader) headers() (length int, chunked bool, err error) {
	length = -1
	for {
		line, err := r.line()
		if err != nil || line == "" {
			return length, chunked, err
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t\r") {
			return 0, false, fmt.Errorf("the answer has a line that is not a header: %.60q", line)
		}
		value = strings.Trim(value, " \t")
		switch strings.ToLower(name) {
		case "content-length":
			n, err := strconv.ParseUint(value, 10, 31)
			if err != nil || length >= 0 {
				return 0, false, fmt.Errorf("the answer has a bad header: %.60q", line)
			}
			length = int(n)
		case "transfer-encoding":
			if chunked || !strings.EqualFold(value, "chunked") {
				return 0, false, fmt.Errorf("the answer has a bad header: %.60q", line)
			}
			chunked = true
		}
	}
}

// chunks reads a chunked body (RFC 9112, section 7.1), without extensions and
// trailers.
func (r *reader) chunks() ([]byte, error) {
	var body []byte
	for {
		line, err := r.line()
		if err != nil {
			return nil, err
		}
		n, err := strconv.ParseUint(line, 16, 31)
		if err != nil {
			return nil, fmt.Errorf("the answer has a bad chunk size: %.60q", line)
		}
		if body, err = r.take(body, int(n)); err != nil {
			return nil, err
		}
		if line, err = r.line(); err != nil || line != "" {
			if err == nil {
				err = fmt.Errorf("a chunk of the answer goes on after its end, with %.60q", line)
			}
			return nil, err
		}
		if n == 0 {
			return body, nil
		}
	}
}
