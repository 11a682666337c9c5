//go:build !amd64

package killer

import (
	"errors"

	"golang.org/x/sys/unix"
)

// CanFail says that calls can be made to fail on this machine.
const CanFail = false

func fail(int, unix.Errno) error {
	return errors.New("system calls can be made to fail on amd64 only")
}
