package client

import (
	"context"
	"errors"
	"iter"
	"net/url"
	"strconv"
	"time"

	"github.com/berth-net/berth/api"
)

// History returns what became of the attachments that a filter matches: first those that are
// attached, then those that are gone, the last to end first. If end is not nil, *end is how the
// answer ended. The last element is an error if not all could be read.
func (c *Client) History(ctx context.Context, f api.PastFilter, end *api.PastEnd) iter.Seq2[api.Past, error] {
	return func(yield func(api.Past, error) bool) {
		for l, err := range lines[api.PastLine](ctx, c, api.PathHistory, pastValues(f), nil) {
			switch {
			case err != nil:
				yield(api.Past{}, err)
				return
			case l.End != nil:
				if end != nil {
					*end = *l.End
				}
				if l.End.Error != "" {
					yield(api.Past{}, errors.New("reading the history: "+l.End.Error))
				}
				return
			case l.Past != nil && !yield(*l.Past, nil):
				return
			}
		}
	}
}

func pastValues(f api.PastFilter) url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"pod": f.Pod, "container": f.Container, "address": f.Address} {
		if value != "" {
			q.Set(name, value)
		}
	}
	for name, at := range map[string]time.Time{"at": f.At, "until": f.Until, "since": f.Since} {
		if !at.IsZero() {
			q.Set(name, at.Format(time.RFC3339Nano))
		}
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return q
}
