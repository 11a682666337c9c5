package scan

import (
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// text scans a string and decodes it.
func (s *scanner) text() (string, error) {
	if err := s.expect('"'); err != nil {
		return "", err
	}
	start := s.at
	for s.at < len(s.in) && plain(s.in[s.at]) {
		s.at++
	}
	if s.peek() == '"' {
		s.at++
		return string(s.in[start : s.at-1]), nil
	}
	out := append([]byte(nil), s.in[start:s.at]...)
	for {
		switch c := s.peek(); {
		case c == '"':
			s.at++
			return string(out), nil
		case s.at >= len(s.in):
			return "", s.errorf("the string does not end")
		case c < ' ':
			return "", s.errorf("control character %#02x in a string", c)
		case c == '\\':
			r, err := s.escape()
			if err != nil {
				return "", err
			}
			out = utf8.AppendRune(out, r)
		default:
			r, size := utf8.DecodeRune(s.in[s.at:])
			if r == utf8.RuneError && size == 1 {
				return "", s.errorf("byte %#02x is not UTF-8", c)
			}
			out = append(out, s.in[s.at:s.at+size]...)
			s.at += size
		}
	}
}

// plain reports whether c stands for itself in a string.
func plain(c byte) bool { return c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' }

// escape scans a backslash and what follows it.
func (s *scanner) escape() (rune, error) {
	s.at++
	c := s.peek()
	s.at++
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
	default:
		s.at = min(s.at-1, len(s.in))
		return 0, s.errorf("expected an escaped character, found %s", s.found())
	}
	start := s.at - 2
	r, err := s.hex4()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	// r is half of a surrogate pair: the other half must follow (RFC 8259, section 7).
	if s.at+1 < len(s.in) && s.in[s.at] == '\\' && s.in[s.at+1] == 'u' {
		s.at += 2
		low, err := s.hex4()
		if err != nil {
			return 0, err
		}
		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			return pair, nil
		}
	}
	s.at = start
	return 0, s.errorf("half of a surrogate pair")
}

// hex4 scans the four digits of a \u escape.
func (s *scanner) hex4() (rune, error) {
	if s.at+4 > len(s.in) {
		s.at = len(s.in)
		return 0, s.errorf("the string does not end")
	}
	n, err := strconv.ParseUint(string(s.in[s.at:s.at+4]), 16, 16)
	if err != nil { // ParseUint takes no sign, and underscores only with base 0
		return 0, s.errorf("expected four hexadecimal digits, found %.10q", s.in[s.at:s.at+4])
	}
	s.at += 4
	return rune(n), nil
}

const hex = "0123456789abcdef"

// AppendString appends text to dst as a JSON string. Bytes that are not UTF-8 become
// U+FFFD, as in encoding/json.
func AppendString(dst []byte, text string) []byte {
	dst = append(dst, '"')
	for _, r := range text { // range gives U+FFFD for what is not UTF-8
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, '\\', 'n')
		case r == '\t':
			dst = append(dst, '\\', 't')
		case r < ' ' || r == 0x7f: // DEL is valid JSON, but can disturb terminals
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}
