package hold

import (
	"errors"
	"strings"
)

// ChangedError is an ErrChanged that lists how a thing differs from its spec.
type ChangedError struct {
	What        string // the thing
	Differences []string
}

func (e *ChangedError) Error() string {
	return e.What + ": " + ErrChanged.Error() + ": " + strings.Join(e.Differences, "; ")
}

// Is lets errors.Is take a ChangedError for ErrChanged.
func (e *ChangedError) Is(target error) bool { return target == ErrChanged }

// Differences returns the differences that err lists, if it is a ChangedError; otherwise the
// text of err as the only difference. It returns none for nil.
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
