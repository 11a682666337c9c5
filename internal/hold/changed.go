package hold

import (
	"errors"
	"strings"
)

// ChangedError is an ErrChanged that says one by one what of a thing is not as
// its spec says.
type ChangedError struct {
	What        string // the thing
	Differences []string
}

func (e *ChangedError) Error() string {
	return e.What + ": " + ErrChanged.Error() + ": " + strings.Join(e.Differences, "; ")
}

// Is makes it an ErrChanged.
func (e *ChangedError) Is(target error) bool { return target == ErrChanged }

// Differences returns what an error says that differs, one by one; of one that
// does not tell them apart its text.
func Differences(err error) []string {
	var c *ChangedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &c):
		return c.Differences
	}
	return []string{err.Error()}
}
