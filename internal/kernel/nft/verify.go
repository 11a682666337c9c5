package nft

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/berth-net/berth/internal/stamp"
)

// Answers of Verify. Verify wraps them with the table's name, and ErrChanged also with what differs.
var (
	ErrGone    = errors.New("gone")
	ErrChanged = errors.New("changed")
)

// Verify compares the ruleset's table in the kernel with the table that Replace writes. It returns nil,
// ErrGone or ErrChanged, with the generation for which the answer holds; or the reason why it could not
// read the table. The parts that the last Replace left out (Lacks) have to be missing: Complete tries
// to write them again.
func (t *Tables) Verify(r Ruleset) (Generation, error) {
	have, at, err := t.read(r.Table())
	if errors.Is(err, errNoTable) {
		return at, fmt.Errorf("nftables table inet %s is %w", r.Table(), ErrGone)
	}
	if err != nil {
		return at, err
	}
	if diffs := diff(r.table(t.Lacks()&r.parts()), have); len(diffs) > 0 {
		return at, fmt.Errorf("nftables table inet %s is %w: %s", r.Table(), ErrChanged, strings.Join(diffs, "; "))
	}
	return at, nil
}

// Holder returns the ID of the owner that holds the instance's table, as the comments of
// its rules say, and whether the table, or the one of family bridge, exists. The owner is "" if the rules' comments
// differ.
func (t *Tables) Holder(instance string) (owner string, there bool, err error) {
	have, _, err := t.read(stamp.Table(instance))
	if errors.Is(err, errNoTable) && have.bridge == nil {
		return "", false, nil
	}
	if err != nil && !errors.Is(err, errNoTable) {
		return "", false, err
	}
	first := true
	for _, each := range have.both() {
		for _, c := range each.chains {
			for _, r := range c.rules {
				if !first && r.comment != owner {
					return "", true, nil
				}
				owner, first = r.comment, false
			}
		}
	}
	return owner, true, nil
}

// diff returns the differences between a table and the wanted table, with those of family bridge, a phrase for each difference.
func diff(want, have table) []string {
	diffs := diffOne(want, have)
	switch {
	case want.bridge == nil && have.bridge != nil:
		diffs = append(diffs, "there is a table of family bridge")
	case want.bridge != nil && have.bridge == nil:
		diffs = append(diffs, "the table of family bridge is missing")
	case want.bridge != nil:
		for _, d := range diffOne(*want.bridge, *have.bridge) {
			diffs = append(diffs, "in the table of family bridge, "+d)
		}
	}
	return diffs
}

// diffOne returns the differences between two tables of one family.
func diffOne(want, have table) []string {
	var diffs []string
	say := func(format string, args ...any) { diffs = append(diffs, fmt.Sprintf(format, args...)) }
	if have.flags != want.flags {
		say("flags are %#x, not %#x", have.flags, want.flags)
	}
	if have.others != want.others {
		say("it has %d foreign objects", have.others)
	}
	for _, w := range want.sets {
		i := slices.IndexFunc(have.sets, func(s set) bool { return s.name == w.name })
		if i < 0 {
			say("set %s is missing", w.name)
			continue
		}
		h := have.sets[i]
		if h.head() != w.head() {
			say("set %s has %q, not %q", w.name, h.head(), w.head())
		}
		if lacks := without(w.ranges, h.ranges); len(lacks) > 0 {
			say("set %s lacks %s", w.name, some(lacks))
		}
		if more := without(h.ranges, w.ranges); len(more) > 0 {
			say("set %s also has %s", w.name, some(more))
		}
		if lacks := without(w.entries, h.entries); len(lacks) > 0 {
			say("set %s lacks %s", w.name, some(w.shown(lacks)))
		}
		if more := without(h.entries, w.entries); len(more) > 0 {
			say("set %s also has %s", w.name, some(w.shown(more)))
		}
	}
	for _, h := range have.sets {
		if !slices.ContainsFunc(want.sets, func(s set) bool { return s.name == h.name }) {
			say("set %s is foreign", h.name)
		}
	}
	for _, w := range want.chains {
		i := slices.IndexFunc(have.chains, func(c chain) bool { return c.name == w.name })
		if i < 0 {
			say("chain %s is missing", w.name)
			continue
		}
		diffs = append(diffs, diffChain(w, have.chains[i])...)
	}
	for _, h := range have.chains {
		if !slices.ContainsFunc(want.chains, func(c chain) bool { return c.name == h.name }) {
			say("chain %s is foreign", h.name)
		}
	}
	return diffs
}

// diffChain compares two chains of one name. The order of rules counts.
func diffChain(want, have chain) []string {
	var diffs []string
	if have.head() != want.head() {
		diffs = append(diffs, fmt.Sprintf("chain %s is %q, not %q", want.name, have.head(), want.head()))
	}
	for i := range max(len(want.rules), len(have.rules)) {
		switch {
		case i >= len(have.rules):
			diffs = append(diffs, fmt.Sprintf("chain %s lacks the rule %q", want.name, want.rules[i]))
		case i >= len(want.rules):
			diffs = append(diffs, fmt.Sprintf("chain %s has a foreign rule %q", want.name, have.rules[i]))
		case !reflect.DeepEqual(have.rules[i].exprs, want.rules[i].exprs):
			diffs = append(diffs, fmt.Sprintf("chain %s has %q in the place of the rule %q", want.name, have.rules[i], want.rules[i]))
		case have.rules[i].comment != want.rules[i].comment:
			diffs = append(diffs, fmt.Sprintf("chain %s has comment %q at the rule %q", want.name, have.rules[i].comment, want.rules[i]))
		}
	}
	return diffs
}

// without returns the elements of a that are not in b.
func without[T comparable](a, b []T) []T {
	in := make(map[T]bool, len(b))
	for _, s := range b {
		in[s] = true
	}
	var rest []T
	for _, s := range a {
		if !in[s] {
			rest = append(rest, s)
		}
	}
	return rest
}

// words is the text of a thing, as a fmt.Stringer for some.
type words string

func (w words) String() string { return string(w) }

// shown shows elements of a set or map of host ports.
func (s set) shown(entries []entry) []words {
	list := make([]words, len(entries))
	for i, e := range entries {
		list[i] = words(s.show(e))
	}
	return list
}

// some returns the texts of the first five things, and says how many more there are.
func some[T fmt.Stringer](things []T) string {
	const few = 5
	texts := make([]string, 0, few)
	for _, s := range things[:min(few, len(things))] {
		texts = append(texts, s.String())
	}
	list := strings.Join(texts, ", ")
	if more := len(things) - few; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}
