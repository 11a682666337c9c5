package link_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// The paths of many pods hang, each in a file system of its own, and their links are gone.
// Callers of Cut look for these links at the same time, and Cut cuts another pod off meanwhile.
func TestManyPathsHang(t *testing.T) {
	for name, act := range map[string]func(*fixture, []hold.Hold, hold.Hold){
		"cut": func(f *fixture, hang []hold.Hold, other hold.Hold) {
			var all sync.WaitGroup
			for _, h := range hang {
				all.Go(func() { must(f, f.kind.Cut(f.Context(), h)) })
			}
			all.Go(func() { must(f, f.kind.Cut(f.Context(), other)) })
			all.Wait()
		},
		"verify": func(f *fixture, hang []hold.Hold, other hold.Hold) {
			for i, err := range f.kind.Verify(f.Context(), hold.Glance(), append(hang, other)) {
				if gone := i < len(hang); gone != errors.Is(err, hold.ErrGone) {
					f.Errorf("%d: %v", i, err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.forwarding()
			_, other := f.pod("4")
			pod := nettest.Pod(t)
			var hang []hold.Hold
			for i := range 8 {
				folder := t.TempDir()
				nettest.Hang(t, folder)
				ref := pod.Ref()
				ref.Path = filepath.Join(folder, fmt.Sprint(i))
				hang = append(hang, f.hold(ref, "4"))
			}
			began := time.Now()
			act(f, hang, other)
			if took := time.Since(began); took > 4*time.Second { // each path alone takes a second
				t.Errorf("it took %s", took)
			}
		})
	}
}
