package conform

import (
	"fmt"
	"slices"
)

// Level is how far an obligation binds.
type Level string

// The levels, from the strictest.
const (
	Must   Level = "must"   // the specification leaves no choice
	Should Level = "should" // the specification recommends it: a plugin may have reasons to depart from it
	Own    Level = "own"    // the suite's own: the specification does not have it, but its breach harms a node
)

// Levels are the levels, from the strictest.
func Levels() []Level { return []Level{Must, Should, Own} }

// ParseLevel reads a level.
func ParseLevel(text string) (Level, error) {
	if slices.Contains(Levels(), Level(text)) {
		return Level(text), nil
	}
	return "", fmt.Errorf("level %.40q: expected one of %v", text, Levels())
}

// words say what a level means.
func (l Level) words() string {
	switch l {
	case Must:
		return "the specification leaves no choice"
	case Should:
		return "the specification recommends it"
	}
	return "the suite's own: the specification does not have it"
}

// Within reports whether a level is as strict as another one, or stricter.
func (l Level) Within(other Level) bool {
	return slices.Index(Levels(), l) <= slices.Index(Levels(), other)
}

// in returns how far a check binds in a version of the specification.
func (c Check) in(version string) Level {
	if c.Early != "" && older(version, "1.0.0") {
		return c.Early
	}
	return c.Level
}

// as calls judge, whose findings are about an obligation of another level than the check's.
func (t *T) as(l Level, judge func()) {
	was := t.level
	t.level = l
	defer func() { t.level = was }()
	judge()
}

// formLevel is how far the form of errors binds in a version (CNI 1.1, section 5, Error; 0.4.0, Result).
func (t *T) formLevel() Level {
	if older(t.Version, "1.0.0") {
		return Must
	}
	return Should
}
