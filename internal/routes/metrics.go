package routes

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-net/berth/api"
)

var (
	descOwners    = prometheus.NewDesc("berth_attachments", "Attachments by state.", []string{"state"}, nil)
	descOwed      = prometheus.NewDesc("berth_owed", "Holds whose release has failed so far.", []string{"kind"}, nil)
	descOwedAge   = prometheus.NewDesc("berth_owed_oldest_seconds", "How long the oldest owed hold has been owed.", []string{"kind"}, nil)
	descQueued    = prometheus.NewDesc("berth_deletions_queued", "Deletions that the plugin has left for the agent.", nil, nil)
	descQueuedAge = prometheus.NewDesc("berth_deletions_oldest_seconds", "How long the oldest queued deletion has been queued; 0: none is.", nil, nil)
	descDamaged   = prometheus.NewDesc("berth_deletions_damaged", "Files in the queue that cannot be read as deletions, and are set aside.", nil, nil)
	descSpare     = prometheus.NewDesc("berth_deletions_spare", "Further deletions that have room on a full disk.", nil, nil)
	descPoolSize  = prometheus.NewDesc("berth_pool_addresses", "Addresses that can be given out.", []string{"pool", "cidr"}, nil)
	descPoolUsed  = prometheus.NewDesc("berth_pool_used_addresses", "Addresses of attachments.", []string{"pool", "cidr"}, nil)
	descPoolFull  = prometheus.NewDesc("berth_pool_exhausted", "1 while an ADD would get no address of the pool.", []string{"pool"}, nil)
	descPoolRest  = prometheus.NewDesc("berth_pool_resting_addresses", "Addresses in cooldown, which are not free.", []string{"pool", "cidr"}, nil)
)

// figures has the figures that verbs know, and reads them at each scrape.
type figures struct {
	verbs Verbs

	mu   sync.Mutex
	owed map[string]bool // kinds that owed a hold at any scrape
}

// Describe is server.Collector's.
func (f *figures) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descOwners, descOwed, descOwedAge, descQueued, descQueuedAge, descDamaged, descSpare, descPoolSize, descPoolUsed, descPoolRest, descPoolFull} {
		ch <- d
	}
}

// Collect is server.Collector's.
func (f *figures) Collect(ctx context.Context, ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	st, _ := f.verbs.Status(ctx, "")     // Status fills st in also when no ADD can be served
	for _, state := range api.States() { // each state has a figure, if only 0
		gauge(descOwners, float64(st.Attachments[state]), state)
	}
	f.collectOwed(gauge)
	gauge(descQueued, float64(st.Deletions.Queued))
	gauge(descDamaged, float64(st.Deletions.Damaged))
	gauge(descSpare, float64(st.Deletions.Spares))
	for _, p := range st.Pools {
		full := 0.0
		if p.Exhausted != "" {
			full = 1
		}
		gauge(descPoolFull, full, p.Name)
		for _, b := range p.CIDRs {
			gauge(descPoolSize, size(b), p.Name, b.CIDR)
			gauge(descPoolUsed, float64(b.Used), p.Name, b.CIDR)
			gauge(descPoolRest, float64(b.Resting), p.Name, b.CIDR)
		}
	}
}

// collectOwed gives the age of the oldest queued deletion, and a figure for each kind of which holds were owed at any scrape. So the
// figure of a kind that owes nothing any more goes to 0, and does not vanish.
func (f *figures) collectOwed(gauge func(*prometheus.Desc, float64, ...string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	count, oldest := map[string]int{}, map[string]time.Time{}
	owed := f.verbs.Owed()
	queued := 0.0
	for _, q := range owed.Deletions.Queued {
		queued = max(queued, time.Since(q.Written).Seconds())
	}
	gauge(descQueuedAge, queued)
	for _, o := range owed.Holds {
		f.owed[o.Kind] = true
		if count[o.Kind]++; count[o.Kind] == 1 || o.Since.Before(oldest[o.Kind]) {
			oldest[o.Kind] = o.Since
		}
	}
	for kind := range f.owed {
		age := 0.0
		if since, ok := oldest[kind]; ok {
			age = max(0, time.Since(since).Seconds())
		}
		gauge(descOwed, float64(count[kind]), kind)
		gauge(descOwedAge, age, kind)
	}
}

// size is a block's size; above 2^53 it is not exact.
func size(b api.PoolCIDR) float64 {
	n, err := strconv.ParseFloat(b.Size, 64)
	if err != nil {
		return 0
	}
	return n
}
