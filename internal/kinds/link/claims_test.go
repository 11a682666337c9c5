package link

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

// openLinks returns the links of an instance that has none, their connection and their groups.
func openLinks(t *testing.T) (*rtnl.Conn, stamp.Groups, *Links) {
	t.Helper()
	nettest.Need(t)
	conn, err := rtnl.Open(nil)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	groups, err := stamp.GroupsOf("testaaaaaa")
	must(t, err)
	return conn, groups, New(Options{Conn: conn, Prefix: "test", Groups: groups})
}

// A cut of a link waits for a deletion of that link, and the other way round. Neither waits
// for a cut or a deletion of another link.
func TestClaims(t *testing.T) {
	_, _, l := openLinks(t)
	planned := func() hold.Hold {
		id := hold.NewID()
		return hold.Hold{Owner: id, Spec: &Spec{Name: stamp.Link("test", id), Addresses: []netip.Addr{netip.MustParseAddr("10.64.200.1")}}}
	}
	a, b := planned(), planned()
	done, err := l.claims.claim(t.Context(), a.Spec.(*Spec).Name)
	must(t, err)
	k := l.Kind()
	for what, do := range map[string]func(context.Context, hold.Hold) error{
		"cut":     k.Cut,
		"release": func(ctx context.Context, h hold.Hold) error { return l.deleteAll(ctx, []*Spec{h.Spec.(*Spec)})[0] },
	} {
		soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := do(soon, a); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s of a link that somebody else is at: %v", what, err)
		}
		cancel()
		if err := do(t.Context(), b); err != nil {
			t.Errorf("%s of another link: %v", what, err)
		}
		met := make(chan error)
		go func() { met <- do(t.Context(), a) }()
		done()
		if err := <-met; err != nil {
			t.Errorf("%s, after it waited: %v", what, err)
		}
		done, err = l.claims.claim(t.Context(), a.Spec.(*Spec).Name)
		must(t, err)
	}
	done()
}
