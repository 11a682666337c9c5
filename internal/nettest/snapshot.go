package nettest

import (
	"testing"

	"github.com/berth-net/berth/conform/oracle"
	"github.com/berth-net/berth/internal/kernel/ns"
)

// State is what Snapshot saw.
type State = oracle.State

// Snapshot is the oracle: it reads, straight from the kernel and with no code of Berth's,
// all that Berth could leave behind in a network namespace. If the namespace `at` is nil, Snapshot
// reads the process's own namespace, and also the mounts of namespaces.
func Snapshot(t testing.TB, at *ns.Netns) State {
	t.Helper()
	Need(t)
	s, err := Look(at)
	if err != nil {
		t.Fatalf("nettest: taking a snapshot: %v", err)
	}
	return s
}

// Same fails the test if two snapshots differ. The text `what`, such as "the failed ADD changed the
// pod", stands in front of the difference.
func Same(t testing.TB, before, after State, what string) {
	t.Helper()
	if diff := before.Diff(after); diff != "" {
		t.Errorf("%s:\n%s", what, diff)
	}
}

// Look is Snapshot for programs that are no tests.
func Look(at *ns.Netns) (s State, err error) {
	if err := Inside(); err != nil {
		return State{}, err
	}
	if at != nil {
		err = at.Do(func() error {
			if err := awaitRoutes(); err != nil {
				return err
			}
			s, err = oracle.Look()
			return err
		})
		return s, err
	}
	self, err := ns.Self()
	if err != nil {
		return State{}, err
	}
	defer self.Close()
	var m State
	err = self.Do(func() error {
		if err := awaitRoutes(); err != nil {
			return err
		}
		if s, err = oracle.Look(); err == nil {
			m, err = oracle.Mounts()
		}
		return err
	})
	return s.And(m), err
}

// Files is the oracle for files: it returns everything below dir with its type and mode,
// without contents and sizes. If dir does not exist, it returns nothing.
func Files(t testing.TB, dir string) State {
	t.Helper()
	s, err := oracle.Files(dir)
	if err != nil {
		t.Fatalf("nettest: listing %s: %v", dir, err)
	}
	return s
}

// List reads a list of the kernel's, and reads it again for as long as the list changes meanwhile:
// the kernel then interrupts its netlink dump, and the list means nothing.
func List[T any](t testing.TB, read func() ([]T, error)) []T {
	t.Helper()
	all, err := oracle.List(read)
	Must(t, err)
	return all
}
