package traffic

import (
	"testing"
	"time"

	"github.com/berth-net/berth/internal/kernel/conntrack"
)

// How many entries a pod may have depends on what can run out: room in connection tracking, or
// the ports of masquerade for one destination, of which a pod keeps half in closed
// connections. A pod whose share is all of the ports may take all of them.
func TestTrimBounds(t *testing.T) {
	const most, share, all = 262144, 32768, 64512
	for _, tt := range []struct {
		connections, entries, most, ports int
		want                              conntrack.Bounds
		rest                              time.Duration
	}{
		{share, 48383, most, all, conntrack.Bounds{}, 0},
		{share, 48384, most, all, conntrack.Bounds{Closed: share, All: 49152}, portsRest},
		{1000, 48384, most, all, conntrack.Bounds{Closed: 32256, All: 48384}, portsRest},
		{64512, 100000, most, all, conntrack.Bounds{}, 0},
		{64512, 196608, most, all, conntrack.Bounds{Closed: 129024, All: 129024, Others: true}, trimRest},
		{share, 196608, most, all, conntrack.Bounds{Closed: share, All: 2 * share, Begun: 49152, Others: true}, trimRest},
		{1000, 196608, most, all, conntrack.Bounds{Closed: 2000, All: 2000, Begun: 48384, Others: true}, trimRest},
		{share, 49152, 65536, all, conntrack.Bounds{Closed: share, All: 2 * share, Begun: 49152, Others: true}, trimRest},
		{8000, 23864, most, 31820, conntrack.Bounds{}, 0},
		{8000, 23865, most, 31820, conntrack.Bounds{Closed: 15910, All: 23865}, portsRest},
		{0, most, most, all, conntrack.Bounds{}, 0},
		{share, 0, 0, all, conntrack.Bounds{}, 0},
	} {
		got, rest := trimBounds(tt.connections, tt.entries, tt.most, tt.ports)
		if got != tt.want || rest != tt.rest {
			t.Errorf("with %d of %d entries, %d a pod: %+v, rest %d; want %+v, %d", tt.entries, tt.most, tt.connections, got, rest, tt.want, tt.rest)
		}
	}
}
