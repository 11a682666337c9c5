package link

import (
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// The kernel gives the inode of a pod's namespace to another pod, while a program elsewhere still uses the
// former pod's interface. That counts for the former pod alone.
func TestLingeringOfAnInodesFormerPod(t *testing.T) {
	var l lingering
	answered := make(chan struct{})
	defer close(answered)
	pod := func(path string, id uint64) *Spec {
		return &Spec{Netns: ns.Ref{Path: path, Dev: 4, Ino: 4026532000, ID: id}}
	}
	l.count(answered, pod("/run/netns/a", 7))
	for _, test := range []struct {
		s    *Spec
		want int
	}{{pod("/proc/1/ns/net", 7), 1}, {pod("/run/netns/a", 8), 0}} {
		if got := l.of(test.s); got != test.want {
			t.Errorf("%+v has %d deletions, want %d", test.s.Netns, got, test.want)
		}
	}
}
