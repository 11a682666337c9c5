package routes_test

import (
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/routes/routestest"
)

// BenchmarkRequest measures what the API costs with a verb that does nothing: client,
// socket, queue, and JSON both ways.
func BenchmarkRequest(b *testing.B) {
	a := routestest.New(b, root.Dir(b.TempDir()), &routestest.Verbs{}, 0)
	a.Run(b)
	a.Open()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := a.Client.GC(b.Context(), api.GCRequest{Network: "net"}); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
