package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestClassify(t *testing.T) {
	for _, test := range []struct {
		err   error
		class error
		errno error
	}{
		{unix.ENODEV, ErrNotFound, unix.ENODEV},
		{unix.EEXIST, ErrExists, unix.EEXIST},
		{unix.EBUSY, ErrBusy, unix.EBUSY},
		{unix.EPERM, ErrPermission, unix.EPERM},
		{unix.EINVAL, ErrInvalid, unix.EINVAL},
		{unix.EOPNOTSUPP, ErrUnsupported, unix.EOPNOTSUPP},
		{unix.EINTR, ErrInterrupted, unix.EINTR},
		{unix.EAGAIN, ErrAgain, unix.EAGAIN},
		{unix.ENOBUFS, ErrExhausted, unix.ENOBUFS},
		{unix.ENETUNREACH, ErrUnreachable, unix.ENETUNREACH},
		{fmt.Errorf("deleting link b0: %w", unix.ENODEV), ErrNotFound, unix.ENODEV},
		{&fs.PathError{Op: "open", Path: "/x", Err: unix.ENOENT}, ErrNotFound, fs.ErrNotExist},
		{os.NewSyscallError("sendmsg", unix.ENOBUFS), ErrExhausted, unix.ENOBUFS},
	} {
		got := Classify(test.err)
		for _, want := range []error{test.class, test.errno, test.err} {
			if !errors.Is(got, want) {
				t.Errorf("Classify(%v) = %v, which is not %q", test.err, got, want)
			}
		}
		for _, class := range classes {
			if class != test.class && errors.Is(got, class) {
				t.Errorf("Classify(%v) is %q as well as %q", test.err, class, test.class)
			}
		}
		if got.Error() != test.err.Error() {
			t.Errorf("Classify(%v) reads %q", test.err, got)
		}
		if again := Classify(got); again != got {
			t.Errorf("Classify(Classify(%v)) wraps it again", test.err)
		}
		if outer := fmt.Errorf("outer: %w", got); Classify(outer) != outer {
			t.Errorf("Classify wraps an error that has a class inside: %v", outer)
		}
	}
}

func TestClassifyLeavesAlone(t *testing.T) {
	for _, err := range []error{nil, errors.New("no errno"), unix.EHWPOISON} {
		if got := Classify(err); got != err {
			t.Errorf("Classify(%v) = %v", err, got)
		}
	}
}

func TestAs(t *testing.T) {
	own := errors.New("link eth0 not found")
	got := As(ErrNotFound, own)
	if !errors.Is(got, ErrNotFound) || !errors.Is(got, own) {
		t.Errorf("As(ErrNotFound, %v) = %v, which is not both", own, got)
	}
	if again := As(ErrNotFound, got); again != got {
		t.Errorf("As wraps what has the class already")
	}
	if got := As(ErrNotFound, nil); got != nil {
		t.Errorf("As(ErrNotFound, nil) = %v", got)
	}
}
