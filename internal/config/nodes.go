package config

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// said is a value of a file, and where it stands there.
type said[T any] struct {
	value *T // nil: not said
	line  int
}

// or returns what is said, or else the default.
func (s said[T]) or(otherwise T) T {
	if s.value != nil {
		return *s.value
	}
	return otherwise
}

// wrong says where in the file an error of the value is, if there is one.
func (s said[T]) wrong(err error) error {
	if err == nil || s.value == nil {
		return err
	}
	return fmt.Errorf("line %d: %w", s.line, err)
}

// Bounds of what a file can say by aliases and merges (*name, <<).
const (
	maxRead   = 1 << 20 // values that are read in all
	maxMerges = 16      // merges within each other
)

// reader reads the nodes of a YAML document, and gathers what is wrong with them.
type reader struct {
	lines   []string // of the text
	read    int      // values so far
	merging int      // merges that are under way, within each other
	wrong   []string
}

// take reads the value of a key or of a list. It gets neither an alias nor null.
type take func(*reader, *yaml.Node)

// value reads a value; null says nothing.
func (r *reader) value(n *yaml.Node, to take) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch r.read++; {
	case r.read == maxRead:
		r.complain(n, "aliases say too much")
	case r.read < maxRead && n.ShortTag() != "!!null":
		to(r, n)
	}
}

// keys reads a mapping, each of whose keys has to be known. A key that the mapping says
// goes over the same key in what it merges; so keys makes known pass over it from then on.
func (r *reader) keys(n *yaml.Node, example string, known map[string]take) {
	if n.Kind != yaml.MappingNode {
		r.want(n, "keys and values, such as "+example)
		return
	}
	var merged []*yaml.Node
	own := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name := key.Value
		switch to, ok := known[name]; {
		case key.ShortTag() == "!!merge":
			merged = append(merged, value)
		case key.Kind != yaml.ScalarNode:
			r.want(key, "a word")
		case !ok:
			r.complain(key, "unknown key %q", name)
		case own[name]:
			r.complain(key, "key %q is there twice", name)
		default:
			own[name] = true
			r.value(value, to)
		}
	}
	for name := range own {
		known[name] = func(*reader, *yaml.Node) {}
	}
	for _, m := range merged {
		r.merge(m, example, known)
	}
}

// merge reads what a mapping takes over from another one, or from several, of which
// the earlier ones go over the later ones.
func (r *reader) merge(n *yaml.Node, example string, known map[string]take) {
	if r.merging == maxMerges { // or a mapping merges itself
		r.complain(n, "merges (<<) go more than %d deep", maxMerges)
		r.read = maxRead // enough
		return
	}
	r.merging++
	defer func() { r.merging-- }()
	r.value(n, func(r *reader, n *yaml.Node) {
		if n.Kind != yaml.SequenceNode {
			r.keys(n, example, known)
			return
		}
		for _, m := range n.Content {
			r.value(m, func(r *reader, n *yaml.Node) { r.keys(n, example, known) })
		}
	})
}

// list reads a list, whose values are read as one says.
func list[T any](s *said[[]said[T]], example string, one func(*said[T]) take) take {
	return func(r *reader, n *yaml.Node) {
		if n.Kind != yaml.SequenceNode {
			r.want(n, "a list, such as "+example)
			return
		}
		values := make([]said[T], len(n.Content))
		for i, v := range n.Content {
			r.value(v, one(&values[i]))
		}
		*s = said[[]said[T]]{&values, n.Line}
	}
}

// scalar reads a number, true or false, or a word.
func scalar[T int | bool | string](s *said[T]) take {
	return func(r *reader, n *yaml.Node) {
		v := new(T)
		if n.Decode(v) == nil {
			*s = said[T]{v, n.Line}
			return
		}
		switch any(*v).(type) {
		case int:
			r.want(n, "a number")
		case bool:
			r.want(n, "true or false")
		default:
			r.want(n, "a word")
		}
	}
}

// complain says what is wrong with a node, and where that is.
func (r *reader) complain(n *yaml.Node, format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Sprintf("line %d: ", n.Line)+fmt.Sprintf(format, args...))
}

// want says what should stand in place of a node, of which it shows the line.
func (r *reader) want(n *yaml.Node, what string) {
	line := ""
	if n.Line <= len(r.lines) {
		line = strings.TrimSpace(r.lines[n.Line-1])
	}
	r.complain(n, "`%.80s`: want %s", line, what)
}

// err is all that was wrong, at once.
func (r *reader) err() error {
	if r.wrong == nil {
		return nil
	}
	return errors.New(strings.Join(r.wrong, "; "))
}
