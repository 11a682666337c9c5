package api_test

import (
	"testing"
	"time"

	"github.com/berth-net/berth/api"
)

// If a former run of the agent promised a release, nobody knows when the pod was cut off: the pod
// counts as gone from the promise on, unless this run saw a cut fail.
func TestPastFilterAtInherited(t *testing.T) {
	at := func(seconds int) *time.Time {
		t := time.Unix(1_800_000_000+int64(seconds), 0)
		return &t
	}
	promised := api.Attachment{Created: *at(30), Releasing: at(60)}
	for what, c := range map[string]struct {
		api.Past
		last int // second in which the pod was there
	}{
		"a former run's":                          {api.Past{Attachment: promised, CutOff: at(90), Ended: at(95)}, 60},
		"a former run's, under way":               {api.Past{Attachment: promised}, 60},
		"a former run's, of which a cut failed":   {api.Past{Attachment: promised, CutError: "busy", CutOff: at(90), Ended: at(95)}, 90},
		"a former run's, which was never cut off": {api.Past{Attachment: promised, CutError: "busy", Ended: at(95)}, 95},
		"this run's":                              {api.Past{Attachment: promised, AskedBy: api.AskedDelete, CutOff: at(90), Ended: at(95)}, 90},
	} {
		for second := 58; second < 97; second++ {
			if got := (api.PastFilter{At: *at(second)}).Matches(c.Past); got != (second <= c.last) {
				t.Errorf("%s: at %d the pod is there: %v", what, second, got)
			}
		}
	}
}

// A pod is there from its ADD until its cut, both included. A filter asks for one moment, or for
// any moment of a span of time. The end of the span is not a part of the span.
func TestPastFilterAt(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(1_800_000_000+int64(seconds), 0) }
	cut, ended := at(90), at(95)
	gone := api.Past{Attachment: api.Attachment{Created: at(30)}, CutOff: &cut, Ended: &ended}
	there := api.Past{Attachment: api.Attachment{Created: at(30)}}
	for _, c := range []struct {
		from, until int // until 0: the moment from alone
		gone, there bool
	}{
		{29, 0, false, false},
		{30, 0, true, true},
		{60, 0, true, true},
		{90, 0, true, true},
		{91, 0, false, true},
		{0, 30, false, false},
		{0, 31, true, true},
		{40, 50, true, true},
		{90, 100, true, true},
		{91, 100, false, true},
		{0, 200, true, true},
	} {
		f := api.PastFilter{At: at(c.from)}
		if c.until != 0 {
			f.Until = at(c.until)
		}
		if got := f.Matches(gone); got != c.gone {
			t.Errorf("%d to %d matches a pod from 30 to 90: %t", c.from, c.until, got)
		}
		if got := f.Matches(there); got != c.there {
			t.Errorf("%d to %d matches a pod from 30 on: %t", c.from, c.until, got)
		}
	}
}
