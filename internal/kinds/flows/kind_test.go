package flows_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/flows"
	"github.com/berth-net/berth/internal/kinds/kindtest"
)

// entries is a table in memory: a list of the addresses that have an entry.
type entries struct {
	mu  sync.Mutex
	all []netip.Addr
}

func (e *entries) ForgetUnless(addrs []netip.Addr, _ func(netip.Addr) bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = slices.DeleteFunc(e.all, func(a netip.Addr) bool { return slices.Contains(addrs, a) })
	return nil
}

// The table has an entry of an address that no hold has. The entry has to stay.
func TestKind(t *testing.T) {
	table := &entries{all: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	var last atomic.Uint32 // the last address that a spec got
	kindtest.Run(t, kindtest.Kind{
		Kind:   flows.Kind(table, nobody{}),
		Unseen: true,
		Spec: func(testing.TB, hold.ID) hold.Spec {
			a := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 10<<24|last.Add(1))))
			return &flows.Spec{Addresses: []netip.Addr{a}}
		},
		Example: &flows.Spec{Addresses: []netip.Addr{netip.MustParseAddr("10.88.0.1"), netip.MustParseAddr("fd00:88::1")}},
		Snapshot: func() string {
			table.mu.Lock()
			defer table.mu.Unlock()
			return fmt.Sprint(table.all)
		},
	})
}
