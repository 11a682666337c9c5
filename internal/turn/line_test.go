package turn

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
)

// Members of a line have their turns in the order in which they joined, whenever they come. All come beside each other.
func TestLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Line
		var order []int
		spots := []*Spot{l.Join(), l.Join(), l.Join()}
		for i, s := range slices.Backward(spots) {
			go func() {
				defer s.Leave()
				must(t, s.Come(t.Context()))
				order = append(order, i)
				s.Done()
			}()
			synctest.Wait()
			<-s.Arrived()
			if i > 0 && len(order) > 0 {
				t.Fatalf("%v before the first", order)
			}
		}
		synctest.Wait()
		if !slices.Equal(order, []int{0, 1, 2}) {
			t.Errorf("the order is %v", order)
		}
	})
}

// Who leaves without being done has all behind fail, also those that have joined but not come yet; leaving after being done does not.
func TestLineFails(t *testing.T) {
	var l Line
	a, b, c, d := l.Join(), l.Join(), l.Join(), l.Join()
	must(t, a.Come(t.Context()))
	a.Done()
	a.Leave()
	must(t, b.Come(t.Context()))
	b.Leave()
	if err := c.Come(t.Context()); !errors.Is(err, ErrAhead) {
		t.Errorf("behind one that failed: %v", err)
	}
	c.Leave()
	if err := d.Come(t.Context()); !errors.Is(err, ErrAhead) {
		t.Errorf("two behind it: %v", err)
	}
}

// A member waits no longer than its context lasts, and fails with the context's cause.
func TestLineGivesUp(t *testing.T) {
	var l Line
	l.Join()
	why := errors.New("overtaken")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := l.Join().Come(ctx); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
}

// Work without a spot waits for nobody.
func TestNoLine(t *testing.T) {
	s := SpotOf(t.Context())
	must(t, s.Come(t.Context()))
	s.Done()
	var l Line
	l.Join()
	mine := l.Join()
	if SpotOf(InLine(t.Context(), mine)) != mine {
		t.Error("the context has lost the spot")
	}
}
