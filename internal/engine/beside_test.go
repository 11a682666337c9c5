package engine_test

import (
	"context"
	"errors"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// A hold of a kind that needs nothing of the hold ahead of it is acquired beside that hold. Take waits for
// both, and for the beside hold also if the one ahead has failed or panicked: until then no release may
// begin.
func TestBeside(t *testing.T) {
	for _, c := range []struct {
		name  string
		ahead func() error // Acquire of the hold ahead
		fails bool
	}{
		{"both succeed", func() error { return nil }, false},
		{"the hold ahead fails", func() error { return errors.New("device busy") }, true},
		{"the hold ahead panics", func() error { panic("of a kind") }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			o := owner("", "a", "wire", "port", "rule")
			wire, port := make(chan struct{}), make(chan struct{})
			n.world.before = on("acquire", func(_ context.Context, h hold.Hold) error {
				switch h.Spec.Kind() {
				case "wire":
					<-wire
					return c.ahead()
				case "port":
					close(wire) // so the wire's Acquire has begun, or waits for nothing but its turn
					<-port
				}
				return nil
			})
			taken := make(chan error, 1)
			go func() {
				defer func() {
					if recover() != nil {
						taken <- errors.New("panic")
					}
				}()
				taken <- n.Take(t.Context(), o)
			}()
			<-wire
			if c.fails {
				nettest.Eventually(t, "the owner is there", func() bool { _, there := n.ledger.Owner(o.ID); return there })
			} else {
				nettest.Eventually(t, "the hold ahead is taken", func() bool { return n.world.has(o.Holds[0]) })
			}
			select {
			case err := <-taken:
				t.Fatalf("Take did not wait for the hold beside: %v", err)
			default:
			}
			close(port)
			if err := <-taken; (err != nil) != c.fails {
				t.Errorf("Take: %v", err)
			}
			n.world.before = func(context.Context, string, hold.Hold) error { return nil }
			release(t, n, o.ID)
			wantResidue(t, n, empty)
		})
	}
}

// A panic of a kind that is acquired beside another one reaches who is to tell of it, and stops nothing else.
func TestBesidePanics(t *testing.T) {
	n := newNode(t)
	o := owner("", "a", "wire", "port")
	n.world.before = on("acquire", func(_ context.Context, h hold.Hold) error {
		if h.Spec.Kind() == "port" {
			panic("of a kind")
		}
		return nil
	})
	takePanics(t, n, o)
	release(t, n, o.ID)
	wantResidue(t, n, empty)
}
