package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/berth-net/berth/internal/misspelt"
)

// said is a value in a file, and its line.
type said[T any] struct {
	value *T // nil: the file lacks it
	line  int
}

// or returns the file's value, or its parameter if the file lacks the value.
func (s said[T]) or(otherwise T) T {
	if s.value != nil {
		return *s.value
	}
	return otherwise
}

// wrong adds the value's line to an error about the value.
func (s said[T]) wrong(err error) error {
	if err == nil || s.value == nil {
		return err
	}
	return fmt.Errorf("line %d: %w", s.line, err)
}

// Bounds of what a file can grow to by aliases and merges (*name, <<).
const (
	maxRead   = 1 << 20 // values that are read in all
	maxMerges = 16      // merges within each other
)

// reader reads the nodes of a YAML document, and collects what is wrong with them.
type reader struct {
	lines   []string // of the text
	read    int      // values read so far
	merging int      // merges being read, each within the one before
	wrong   []string
}

// take reads the value of a key or of a list. It gets neither an alias nor null.
type take func(*reader, *yaml.Node)

// value reads a value; null counts as absent.
func (r *reader) value(n *yaml.Node, to take) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch r.read++; {
	case r.read == maxRead:
		r.complain(n, "aliases make the file too long")
	case r.read < maxRead && n.ShortTag() != "!!null":
		to(r, n)
	}
}

// keys reads a mapping, each of whose keys has to be known. A key of the mapping itself
// takes precedence over the same key in a mapping that it merges. So, for each key that it has
// read, keys replaces the entry in known by an entry that does nothing.
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
			r.complain(key, "unknown key %q%s", name, misspelt.Meant(name, slices.Sorted(maps.Keys(known))))
		case own[name]:
			r.complain(key, "key %q appears twice", name)
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

// merge reads the mapping, or the list of mappings, that another mapping merges. In a list,
// an earlier mapping takes precedence over a later one.
func (r *reader) merge(n *yaml.Node, example string, known map[string]take) {
	if r.merging == maxMerges { // or a mapping merges itself
		r.complain(n, "merges (<<) are nested more than %d deep", maxMerges)
		r.read = maxRead // so that nothing more is read
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

// list reads a list. The function `one` returns the take that reads a value of the list.
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
func scalar[T int | float64 | bool | string](s *said[T]) take {
	return func(r *reader, n *yaml.Node) {
		v := new(T)
		if n.Decode(v) == nil {
			*s = said[T]{v, n.Line}
			return
		}
		switch any(*v).(type) {
		case int, float64:
			r.want(n, "a number")
		case bool:
			r.want(n, "true or false")
		default:
			r.want(n, "a word")
		}
	}
}

// complain notes what is wrong with a node, and in which line.
func (r *reader) complain(n *yaml.Node, format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Sprintf("line %d: ", n.Line)+fmt.Sprintf(format, args...))
}

// want complains of a node: it shows the node's line, and says what should stand there.
func (r *reader) want(n *yaml.Node, what string) {
	line := ""
	if n.Line <= len(r.lines) {
		line = strings.TrimSpace(r.lines[n.Line-1])
	}
	r.complain(n, "`%.80s`: want %s", line, what)
}

// err returns all complaints as one error, or nil.
func (r *reader) err() error {
	if r.wrong == nil {
		return nil
	}
	return errors.New(strings.Join(r.wrong, "; "))
}
