package kube

import (
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// guard refuses lists that are older than what the API server has told before. One reflector calls it, from one goroutine.
type guard struct {
	log    *slog.Logger
	what   string    // is listed, such as "nodes"
	newest string    // the newest resourceVersion that the API server has told
	since  time.Time // of the first of the lists that were too old; zero: the last one was not
}

// olderFor is for how long lists are refused that are older than what the API server has told before. An API server that lags
// behind another one catches up sooner. One whose store was restored from a backup never does.
const olderFor = 5 * time.Minute

// fresh returns an error if a list of this resourceVersion is older than what the API server has told before: as when another
// API server answers, which lags behind. By such a list, what is there would go.
func (g *guard) fresh(version string, now time.Time) error {
	order, err := resourceversion.CompareResourceVersion(version, g.newest)
	if err != nil || order >= 0 { // err: nothing to compare with
		g.since = time.Time{}
		return nil
	}
	if g.since.IsZero() {
		g.since = now
	}
	if now.Sub(g.since) >= olderFor {
		g.log.Warn("the API server's lists have been older than what it told before for long: the agent takes this one for right", "of", g.what, "version", version, "before", g.newest)
		g.since = time.Time{}
		return nil
	}
	return fmt.Errorf("the API server's list of %s, of version %s, is older than what it told before, of version %s", g.what, version, g.newest)
}

// note notes the resourceVersion of an event.
func (g *guard) note(version string) {
	if order, err := resourceversion.CompareResourceVersion(version, g.newest); err != nil || order > 0 {
		g.newest = version
	}
}
