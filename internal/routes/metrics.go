package routes

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-net/berth/api"
)

var (
	descOwners    = prometheus.NewDesc("berth_attachments", "Attachments by state.", []string{"state"}, nil)
	descReady     = prometheus.NewDesc("berth_ready", "1 while STATUS says that pods can be attached, by the default pool.", nil, nil)
	descLacks     = prometheus.NewDesc("berth_table_lacking", "1 while the nftables table lacks a part, because the kernel does not support it.", []string{"part"}, nil)
	descOverlaps  = prometheus.NewDesc("berth_pool_overlaps", "Pools in force whose addresses somebody else on the node uses.", nil, nil)
	descOwed      = prometheus.NewDesc("berth_owed_holds", "Holds whose release has failed so far.", []string{"kind"}, nil)
	descOwedAge   = prometheus.NewDesc("berth_owed_oldest_age_seconds", "How long the oldest owed hold has been owed.", []string{"kind"}, nil)
	descQueued    = prometheus.NewDesc("berth_deletions_queued", "Deletions that the plugin has left for the agent.", nil, nil)
	descQueuedAge = prometheus.NewDesc("berth_deletions_oldest_age_seconds", "How long the oldest queued deletion has been queued; 0: none is.", nil, nil)
	descDamaged   = prometheus.NewDesc("berth_deletions_damaged", "Files in the queue that cannot be read as deletions, and are set aside.", nil, nil)
	descSpare     = prometheus.NewDesc("berth_deletions_spare", "Further deletions that have room on a full disk.", nil, nil)
	descLost      = prometheus.NewDesc("berth_history_lost_records_total", "Records of attachments that are gone, which this run of the agent could not write.", nil, nil)
	descPoolSize  = prometheus.NewDesc("berth_pool_addresses", "Addresses that can be given out.", []string{"pool", "cidr"}, nil)
	descPoolUsed  = prometheus.NewDesc("berth_pool_used_addresses", "Addresses of attachments.", []string{"pool", "cidr"}, nil)
	descPoolFull  = prometheus.NewDesc("berth_pool_exhausted", "1 while an ADD would get no address of the pool.", []string{"pool"}, nil)
	descPoolRest  = prometheus.NewDesc("berth_pool_resting_addresses", "Addresses in cooldown, which are not free.", []string{"pool", "cidr"}, nil)
)

// figures has the figures that verbs know, and reads them at each scrape.
type figures struct {
	verbs Verbs

	mu   sync.Mutex
	owed map[string]bool // kinds that the daemon has, or that owed a hold at any scrape
}

// Describe is server.Collector's.
func (f *figures) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descUnrouted, descFailures, descEvents, descWays, descSilent, descResponder, descPeer, descLatency, descReady, descLacks, descOverlaps, descOwners, descOwed, descOwedAge, descQueued, descQueuedAge, descDamaged, descSpare, descLost, descPoolSize, descPoolUsed, descPoolRest, descPoolFull} {
		ch <- d
	}
}

// Collect is server.Collector's.
func (f *figures) Collect(ctx context.Context, ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	st, err := f.verbs.Status(ctx, "") // Status fills st in also when no ADD can be served
	gauge(descReady, flag(err == nil))
	for _, state := range api.States() { // each state has a figure, if only 0
		gauge(descOwners, float64(st.Attachments[state]), state)
	}
	for _, part := range api.Lacks() {
		gauge(descLacks, flag(slices.Contains(st.Lacks, part)), part)
	}
	gauge(descOverlaps, float64(len(st.Overlaps)))
	f.collectOwed(gauge)
	collectHealth(f.verbs.Health(), gauge)
	collectCluster(st.Cluster, ch)
	gauge(descQueued, float64(st.Deletions.Queued))
	gauge(descDamaged, float64(st.Deletions.Damaged))
	gauge(descSpare, float64(st.Deletions.Spares))
	ch <- prometheus.MustNewConstMetric(descLost, prometheus.CounterValue, float64(st.History.Lost))
	for _, p := range st.Pools {
		gauge(descPoolFull, flag(p.Exhausted != ""), p.Name)
		for _, b := range p.CIDRs {
			gauge(descPoolSize, size(b), p.Name, b.CIDR)
			gauge(descPoolUsed, float64(b.Used), p.Name, b.CIDR)
			gauge(descPoolRest, float64(b.Resting), p.Name, b.CIDR)
		}
	}
}

// collectOwed gives the age of the oldest queued deletion, and the figures of each kind that the
// daemon has, or that had owed holds at any scrape. So the figures of a kind that owes
// nothing any more go to 0, and do not vanish.
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

// flag returns 1 for true, and 0 for false.
func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// size returns how many addresses a CIDR has; above 2^53 the number is not exact.
func size(b api.PoolCIDR) float64 {
	n, err := strconv.ParseFloat(b.Size, 64)
	if err != nil {
		return 0
	}
	return n
}
