package ns_test

import (
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// BenchmarkOpen measures what the plugin pays to identify the pod's namespace.
func BenchmarkOpen(b *testing.B) {
	path := nettest.Pod(b).Ref().Path
	for b.Loop() {
		n, err := ns.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		n.Close()
	}
}

// BenchmarkOpenSoon measures what the agent pays to identify the pod's namespace.
func BenchmarkOpenSoon(b *testing.B) {
	path := nettest.Pod(b).Ref().Path
	for b.Loop() {
		n, err := ns.OpenSoon(path)
		if err != nil {
			b.Fatal(err)
		}
		n.Close()
	}
}

// BenchmarkDo measures a round trip into a namespace and back.
func BenchmarkDo(b *testing.B) {
	n := nettest.Pod(b)
	for b.Loop() {
		if err := n.Do(func() error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
