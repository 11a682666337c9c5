package kindtest

import (
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/kindtest/toy"
)

// granted returns a kind of a toy API with options, as a kind under test.
func granted(options ...func(*hold.Kind)) Kind {
	a := toy.New()
	return Kind{
		Kind:        a.Kind("grant", hold.Reserve, options...),
		Fake:        true,
		Undisguised: "what an API gives is as it says, or has another number, and is another",
		Spec:        func(_ testing.TB, owner hold.ID) hold.Spec { return &toy.Spec{K: "grant", Place: string(owner)} },
		Foreign:     func(_ testing.TB, h hold.Hold) func() error { return a.Foreign(h) },
		Snapshot:    a.String,

		End:  func(_ testing.TB, h hold.Hold) { a.End(h) },
		Lose: func(_ testing.TB, h hold.Hold) { a.Lose(h) },
		Throttle: func(testing.TB) (time.Time, func()) {
			return a.Throttle(time.Hour), func() { a.Throttle(0) }
		},
		Hang: func(testing.TB) func() { return a.Hang() },
	}
}

// A kind with all options passes the checks, and so do kinds with some of the options.
func TestToyOptions(t *testing.T) {
	for name, options := range map[string][]func(*hold.Kind){
		"all":      {toy.Ends, toy.Waits, toy.Limited},
		"ends":     {toy.Ends},
		"waits":    {toy.Waits},
		"limited":  {toy.Limited},
		"discover": nil,
	} {
		t.Run(name, func(t *testing.T) { Run(t, granted(options...)) })
	}
}
