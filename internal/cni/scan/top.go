package scan

import "slices"

// Top returns the fields of the object raw, and looks into none of their values: the caller learns
// whether a value can be read when it reads the value. Top leaves out a field whose key cannot be
// read, and a field that is there twice; but it refuses raw if a field that is there twice is among
// needed.
//
// Top is for a caller that must not fail because of a field that nobody needs.
func Top(raw []byte, needed ...string) (Fields, error) {
	var fields Fields
	s := &scanner{in: raw}
	err := s.document('{', "an object", func() (err error) {
		fields, err = s.top()
		return err
	})
	if err != nil {
		return nil, err
	}
	seen := map[string]int{}
	for _, f := range fields {
		if seen[f.Key]++; seen[f.Key] > 1 && slices.Contains(needed, f.Key) {
			return nil, s.errorf("key %.100q is there twice", f.Key)
		}
	}
	return slices.DeleteFunc(fields, func(f Field) bool { return seen[f.Key] > 1 }), nil
}

// top scans an object, and passes over its values.
func (s *scanner) top() (fields Fields, err error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	if s.peek() == '}' {
		s.at++
		return nil, nil
	}
	for more := true; more; {
		start := s.at
		key, unreadable := s.text()
		if unreadable != nil {
			s.at = start
			if err := s.passString(); err != nil {
				return nil, err
			}
		}
		s.blanks()
		if err := s.expect(':'); err != nil {
			return nil, err
		}
		s.blanks()
		start = s.at
		if err := s.pass(); err != nil {
			return nil, err
		}
		if unreadable == nil {
			fields = append(fields, Field{key, s.in[start:s.at]})
		}
		if more, err = s.more('}'); err != nil {
			return nil, err
		}
	}
	return fields, nil
}

// pass moves past a value whose brackets and strings end, whatever else is in it.
func (s *scanner) pass() error {
	start := s.at
	var open []byte // the brackets that have to come
	for s.at < len(s.in) {
		c := s.in[s.at]
		switch {
		case c == '"':
			if err := s.passString(); err != nil {
				return err
			}
		case c == '{':
			open = append(open, '}')
			s.at++
		case c == '[':
			open = append(open, ']')
			s.at++
		case len(open) > 0 && c == open[len(open)-1]:
			open = open[:len(open)-1]
			s.at++
		case c == '}' || c == ']' || len(open) == 0 && (c == ',' || c == ' ' || c == '\t' || c == '\r' || c == '\n'):
			if len(open) > 0 {
				return s.errorf("expected %q, found %s", open[len(open)-1], s.found())
			}
			if s.at == start {
				return s.errorf("expected a value, found %s", s.found())
			}
			return nil
		default:
			s.at++
			continue // a number or a word goes on
		}
		if len(open) == 0 {
			return nil
		}
	}
	return s.errorf("expected the end of a value, found %s", s.found())
}

// passString moves past a string, whatever is in it.
func (s *scanner) passString() error {
	if err := s.expect('"'); err != nil {
		return err
	}
	for ; s.at < len(s.in); s.at++ {
		switch s.in[s.at] {
		case '"':
			s.at++
			return nil
		case '\\':
			s.at++
		}
	}
	s.at = len(s.in)
	return s.errorf("the string does not end")
}
