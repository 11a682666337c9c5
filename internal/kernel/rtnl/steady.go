package rtnl

import (
	"errors"

	"github.com/berth-net/berth/internal/kernel"
)

// Steady calls look again, up to ten times, if a change has interrupted it (kernel.ErrInterrupted).
func Steady[T any](look func() ([]T, error)) (all []T, err error) {
	for range 10 {
		if all, err = look(); !errors.Is(err, kernel.ErrInterrupted) {
			break
		}
	}
	return all, err
}
