package scan

import (
	"fmt"
	"unicode/utf8"
)

// scanner reads the input `in`, and has read in[:at]. Its methods move the scanner past what they name.
type scanner struct {
	in    []byte
	at    int
	depth int
}

func (s *scanner) errorf(format string, args ...any) error {
	return &SyntaxError{s.at, fmt.Sprintf(format, args...)}
}

// document scans input that has one value, beginning with first, and nothing
// after it.
func (s *scanner) document(first byte, what string, scan func() error) error {
	s.blanks()
	if s.peek() != first {
		return s.errorf("expected %s, found %s", what, s.found())
	}
	if err := scan(); err != nil {
		return err
	}
	s.blanks()
	if s.at < len(s.in) {
		return s.errorf("expected nothing more after %s, found %s", what, s.found())
	}
	return nil
}

// peek returns the next byte, or 0 at the end (a NUL is never valid JSON).
func (s *scanner) peek() byte {
	if s.at < len(s.in) {
		return s.in[s.at]
	}
	return 0
}

// found describes what stands next, for messages.
func (s *scanner) found() string {
	if s.at >= len(s.in) {
		return "the end of the input"
	}
	if r, size := utf8.DecodeRune(s.in[s.at:]); r != utf8.RuneError || size > 1 {
		return fmt.Sprintf("%q", r)
	}
	return fmt.Sprintf("byte %#02x, which is not UTF-8", s.in[s.at])
}

func (s *scanner) blanks() {
	for s.at < len(s.in) {
		switch s.in[s.at] {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return
		}
	}
}

// expect moves past one byte.
func (s *scanner) expect(c byte) error {
	if s.peek() != c {
		return s.errorf("expected %q, found %s", c, s.found())
	}
	s.at++
	return nil
}

// enter counts one more level of nesting, and moves past the bracket with which the level begins.
func (s *scanner) enter() error {
	if s.depth++; s.depth > MaxDepth {
		return s.errorf("nested deeper than %d levels", MaxDepth)
	}
	s.at++
	s.blanks()
	return nil
}

// more moves past the comma before another element, and returns true, or moves past the byte end.
func (s *scanner) more(end byte) (bool, error) {
	s.blanks()
	switch s.peek() {
	case end:
		s.at++
		s.depth--
		return false, nil
	case ',':
		s.at++
		s.blanks()
		return true, nil
	}
	return false, s.errorf("expected ',' or %q, found %s", end, s.found())
}

// object scans an object, and calls field for each of its fields, but not for fields of objects
// within it.
func (s *scanner) object(field func(key string, value []byte)) error {
	if err := s.enter(); err != nil {
		return err
	}
	if s.peek() == '}' {
		s.at++
		s.depth--
		return nil
	}
	seen := map[string]bool{}
	for more := true; more; {
		start := s.at
		key, err := s.text()
		if err != nil {
			return err
		}
		if seen[key] {
			s.at = start
			return s.errorf("key %.100q appears twice", key)
		}
		seen[key] = true
		s.blanks()
		if err := s.expect(':'); err != nil {
			return err
		}
		s.blanks()
		start = s.at
		if err := s.value(); err != nil {
			return err
		}
		field(key, s.in[start:s.at])
		if more, err = s.more('}'); err != nil {
			return err
		}
	}
	return nil
}

// array scans an array, and calls element for each of its elements, but not for elements of arrays
// within it.
func (s *scanner) array(element func(value []byte)) error {
	if err := s.enter(); err != nil {
		return err
	}
	if s.peek() == ']' {
		s.at++
		s.depth--
		return nil
	}
	for more := true; more; {
		start := s.at
		err := s.value()
		if err != nil {
			return err
		}
		element(s.in[start:s.at])
		if more, err = s.more(']'); err != nil {
			return err
		}
	}
	return nil
}

// value scans any value.
func (s *scanner) value() error {
	switch c := s.peek(); {
	case c == '{':
		return s.object(func(string, []byte) {})
	case c == '[':
		return s.array(func([]byte) {})
	case c == '"':
		_, err := s.text()
		return err
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	}
	for _, word := range []string{"true", "false", "null"} {
		if end := s.at + len(word); end <= len(s.in) && string(s.in[s.at:end]) == word {
			s.at = end
			return nil
		}
	}
	return s.errorf("expected a value, found %s", s.found())
}

// number scans a number by RFC 8259, section 6: no leading zeros, no plus sign, digits on
// both sides of a point.
func (s *scanner) number() error {
	if s.peek() == '-' {
		s.at++
	}
	if s.peek() == '0' {
		s.at++
	} else if err := s.digits(); err != nil {
		return err
	}
	if s.peek() == '.' {
		s.at++
		if err := s.digits(); err != nil {
			return err
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.at++
		if c := s.peek(); c == '+' || c == '-' {
			s.at++
		}
		return s.digits()
	}
	return nil
}

// digits scans one or more digits.
func (s *scanner) digits() error {
	start := s.at
	for c := s.peek(); c >= '0' && c <= '9'; c = s.peek() {
		s.at++
	}
	if s.at == start {
		return s.errorf("expected a digit, found %s", s.found())
	}
	return nil
}
