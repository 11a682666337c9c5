package server

import (
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/ledger"
)

// buckets are for what takes a ledger commit (0.3 ms), a link's end (20 ms), or
// as long as a client waits: seconds.
var buckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// Metrics is the agent's figures for Prometheus. It is made before the parts
// that report to it.
type Metrics struct {
	registry *prometheus.Registry
	verbs    *prometheus.HistogramVec
	kinds    *prometheus.HistogramVec
	holds    *prometheus.CounterVec
}

// NewMetrics returns metrics of their own registry.
func NewMetrics() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		verbs: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_verb_seconds", Buckets: buckets,
			Help: "Time from a request's arrival to its answer, waiting included.",
		}, []string{"verb", "result"}),
		kinds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_kind_seconds", Buckets: buckets,
			Help: "Time of one operation of a kind, which may be on many holds at once.",
		}, []string{"kind", "op"}),
		holds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_kind_holds_total",
			Help: "Holds that operations of a kind were on; result failed says that one or more of the operation's failed.",
		}, []string{"kind", "op", "result"}),
	}
	m.registry.MustRegister(m.verbs, m.kinds, m.holds,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// ObserveKind is told of each operation of a kind: it fits engine.Options.Observe.
func (m *Metrics) ObserveKind(kind, op string, took time.Duration, holds int, err error) {
	m.kinds.WithLabelValues(kind, op).Observe(took.Seconds())
	result := "ok"
	if err != nil {
		result = "failed"
	}
	m.holds.WithLabelValues(kind, op, result).Add(float64(holds))
}

// ObserveLedger makes a ledger's figures part of the metrics, read by stats at
// each scrape.
func (m *Metrics) ObserveLedger(stats func() ledger.Stats) {
	m.registry.MustRegister(ledgerCollector(stats))
}

func (m *Metrics) observeVerb(verb, result string, took time.Duration) {
	m.verbs.WithLabelValues(verb, result).Observe(took.Seconds())
}

// watch makes the figures of a server and its verbs part of the metrics.
func (m *Metrics) watch(s *Server) {
	m.registry.MustRegister(&serverCollector{s: s, owed: map[string]bool{}})
}

func (m *Metrics) handler(log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: 4,
		DisableCompression:  true, // it does not leave the node
	})
}

var (
	descExecuting = prometheus.NewDesc("berth_requests_executing", "Requests that have a place.", nil, nil)
	descWaiting   = prometheus.NewDesc("berth_requests_waiting", "Requests that wait for a place.", []string{"lane"}, nil)
	descServing   = prometheus.NewDesc("berth_serving", "1 once what the ledger says is restored.", nil, nil)
	descOwners    = prometheus.NewDesc("berth_attachments", "Attachments by state.", []string{"state"}, nil)
	descOwed      = prometheus.NewDesc("berth_owed", "Holds whose release has failed so far.", []string{"kind"}, nil)
	descOwedAge   = prometheus.NewDesc("berth_owed_oldest_seconds", "For how long the hold is owed that is owed the longest.", []string{"kind"}, nil)
	descQueued    = prometheus.NewDesc("berth_deletions_queued", "Deletions that the plugin has left for the agent.", nil, nil)
	descDamaged   = prometheus.NewDesc("berth_deletions_damaged", "Files set aside that are no deletions.", nil, nil)
	descSpare     = prometheus.NewDesc("berth_deletions_spare", "Deletions that have room on a full disk.", nil, nil)
	descPoolSize  = prometheus.NewDesc("berth_pool_addresses", "Addresses that can be given out.", []string{"pool", "cidr"}, nil)
	descPoolUsed  = prometheus.NewDesc("berth_pool_used_addresses", "Addresses of attachments.", []string{"pool", "cidr"}, nil)
	descPoolRest  = prometheus.NewDesc("berth_pool_resting_addresses", "Addresses in cooldown, which are not free.", []string{"pool", "cidr"}, nil)
)

// serverCollector reads a server and its verbs at each scrape.
type serverCollector struct {
	s *Server

	mu   sync.Mutex
	owed map[string]bool // kinds
}

func (c *serverCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descExecuting, descWaiting, descServing, descOwners, descOwed, descOwedAge, descQueued, descDamaged, descSpare, descPoolSize, descPoolUsed, descPoolRest} {
		ch <- d
	}
}

func (c *serverCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	busy, waiting := c.s.queue.load()
	gauge(descExecuting, float64(busy))
	for l, n := range waiting {
		gauge(descWaiting, float64(n), lane(l).String())
	}
	if !c.s.queue.isOpen() {
		gauge(descServing, 0)
		return // the rest is not known yet
	}
	gauge(descServing, 1)
	st, _ := c.s.verbs.Status(c.s.ctx, "") // filled in also when no ADD can be served
	for _, state := range api.States() {   // each has a figure, if only 0
		gauge(descOwners, float64(st.Attachments[state]), state)
	}
	c.collectOwed(gauge)
	gauge(descQueued, float64(st.Deletions.Queued))
	gauge(descDamaged, float64(st.Deletions.Damaged))
	gauge(descSpare, float64(st.Deletions.Spares))
	for _, p := range st.Pools {
		for _, b := range p.CIDRs {
			gauge(descPoolSize, size(b), p.Name, b.CIDR)
			gauge(descPoolUsed, float64(b.Used), p.Name, b.CIDR)
			gauge(descPoolRest, float64(b.Resting), p.Name, b.CIDR)
		}
	}
}

// collectOwed has a figure for each kind that was ever seen to be owed, so that
// one which is owed no more goes to 0 and does not vanish.
func (c *serverCollector) collectOwed(gauge func(*prometheus.Desc, float64, ...string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count, oldest := map[string]int{}, map[string]time.Time{}
	for _, o := range c.s.verbs.Owed().Holds {
		c.owed[o.Kind] = true
		if count[o.Kind]++; count[o.Kind] == 1 || o.Since.Before(oldest[o.Kind]) {
			oldest[o.Kind] = o.Since
		}
	}
	for kind := range c.owed {
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

var (
	descBatch   = prometheus.NewDesc("berth_ledger_commits_per_transaction", "Commits that one transaction of the ledger made durable.", nil, nil)
	descBusy    = prometheus.NewDesc("berth_ledger_busy_seconds_total", "Time spent in transactions.", nil, nil)
	descRecords = prometheus.NewDesc("berth_ledger_records", "What the ledger has.", []string{"sort"}, nil)
	descFile    = prometheus.NewDesc("berth_ledger_file_bytes", "Size of the ledger's file.", nil, nil)
	descReserve = prometheus.NewDesc("berth_ledger_reserve_ok", "0: the disk is full, and only deletions are written.", nil, nil)
)

// ledgerCollector reads a ledger's figures at each scrape.
type ledgerCollector func() ledger.Stats

func (c ledgerCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descBatch, descBusy, descRecords, descFile, descReserve} {
		ch <- d
	}
}

func (c ledgerCollector) Collect(ch chan<- prometheus.Metric) {
	st := c()
	total, upTo := uint64(0), map[float64]uint64{}
	for i, n := range st.Batches {
		total += n
		if i < len(st.Batches)-1 { // the last has no upper bound
			upTo[float64(uint64(1)<<i)] = total
		}
	}
	ch <- prometheus.MustNewConstHistogram(descBatch, total, float64(st.Commits), upTo)
	ch <- prometheus.MustNewConstMetric(descBusy, prometheus.CounterValue, st.Busy.Seconds())
	for sort, n := range map[string]int{"owner": st.Owners, "name": st.Names, "resting": st.Resting, "tombstone": st.Tombstones} {
		ch <- prometheus.MustNewConstMetric(descRecords, prometheus.GaugeValue, float64(n), sort)
	}
	ch <- prometheus.MustNewConstMetric(descFile, prometheus.GaugeValue, float64(st.FileSize))
	reserve := 0.0
	if st.ReserveOK {
		reserve = 1
	}
	ch <- prometheus.MustNewConstMetric(descReserve, prometheus.GaugeValue, reserve)
}
