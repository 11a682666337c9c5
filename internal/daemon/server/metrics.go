package server

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/version"
)

// buckets are upper bounds in seconds. They cover a ledger commit (0.3 ms), the deletion of
// a link (20 ms), and calls that take as long as a client waits.
var buckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// Metrics is a daemon's figures for Prometheus. A daemon makes its Metrics before the parts that
// report to them.
type Metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	verbs    *prometheus.HistogramVec
	kinds    *prometheus.HistogramVec
	holds    *prometheus.CounterVec
	repairs  *prometheus.CounterVec
	findings *prometheus.GaugeVec
	finding  sync.Mutex
	types    map[string]bool // of findings, that any audit or sweep has named; guarded by finding
	audited  prometheus.Gauge
	reloaded prometheus.Gauge
	reloadAt prometheus.Gauge
}

// NewMetrics returns metrics with a registry of their own.
func NewMetrics() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		types:    map[string]bool{},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_requests_total",
			Help: "Requests that were answered. Result owed: done, but for what the agent goes on trying to give back; refused: the request is wrong, or asks for what is taken; again: the client has to try again; unknown: there is no such thing, or not any more.",
		}, []string{"verb", "result"}),
		verbs: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_request_duration_seconds", Buckets: buckets,
			Help: "Time from a request's arrival to its answer, waiting included.",
		}, []string{"verb"}),
		kinds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_operation_duration_seconds", Buckets: buckets,
			Help: "Time of one operation of a kind, which may be on many holds at once.",
		}, []string{"kind", "op"}),
		holds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_operation_holds_total",
			Help: "Holds in operations of a kind; result failed: the operation failed for one or more of its holds.",
		}, []string{"kind", "op", "result"}),
	}
	m.repairs = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_repairs_total", Help: "Things that others had changed, or taken away, and that the agent has mended.",
	}, []string{"kind"})
	m.findings = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "berth_audit_findings", Help: "What the last audit or sweep has found; a sweep mends it.",
	}, []string{"type"})
	m.audited = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "berth_audit_timestamp_seconds", Help: "When the last audit or sweep ended; 0: none has.",
	})
	m.reloaded = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "berth_config_last_reload_successful", Help: "1 if the configuration that was read last is in force.",
	})
	m.reloadAt = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "berth_config_last_reload_success_timestamp_seconds", Help: "When the configuration in force was read.",
	})
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "berth_build_info", Help: "1, with the versions as labels.",
		ConstLabels: prometheus.Labels{"version": version.Text, "goversion": runtime.Version()},
	})
	build.Set(1)
	m.Reloaded(nil) // a daemon does not start with a configuration that has an error
	m.registry.MustRegister(build, m.repairs, m.findings, m.audited, m.reloaded, m.reloadAt)
	m.registry.MustRegister(m.requests, m.verbs, m.kinds, m.holds,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// ExpectRepairs makes the repairs of these kinds begin with 0: a rate or an increase does not
// see the first value of a series that begins with its first event.
func (m *Metrics) ExpectRepairs(kinds ...string) {
	for _, kind := range kinds {
		m.repairs.WithLabelValues(kind)
	}
}

// expect makes all series of these kinds begin with 0.
func (m *Metrics) expect(kinds []string) {
	m.ExpectRepairs(kinds...)
	for _, kind := range kinds {
		for _, op := range []string{"acquire", "cut", "release"} {
			m.holds.WithLabelValues(kind, op, "ok")
			m.holds.WithLabelValues(kind, op, "failed")
		}
	}
}

// ObserveKind records one operation of a kind. It fits engine.Options.Observe.
func (m *Metrics) ObserveKind(kind, op string, took time.Duration, holds int, err error) {
	m.kinds.WithLabelValues(kind, op).Observe(took.Seconds())
	result := "ok"
	if err != nil {
		result = "failed"
	}
	m.holds.WithLabelValues(kind, op, result).Add(float64(holds))
}

// Repaired counts a repair of a thing of a kind.
func (m *Metrics) Repaired(kind string) { m.repairs.WithLabelValues(kind).Inc() }

// Found records how many findings of each type an audit or a sweep has. Types that it does not name
// go to 0: a sweep does not name types that only an audit looks for.
func (m *Metrics) Found(findings map[string]int) {
	m.finding.Lock()
	defer m.finding.Unlock()
	for typ := range m.types {
		m.findings.WithLabelValues(typ).Set(0)
	}
	for typ, n := range findings {
		m.types[typ] = true
		m.findings.WithLabelValues(typ).Set(float64(n))
	}
	m.audited.SetToCurrentTime()
}

// Reloaded records that a configuration was read, and why it is not in force.
func (m *Metrics) Reloaded(err error) {
	if err != nil {
		m.reloaded.Set(0)
		return
	}
	m.reloaded.Set(1)
	m.reloadAt.SetToCurrentTime()
}

// ObserveLedger adds a ledger's figures to the metrics. Each scrape reads them by stats.
func (m *Metrics) ObserveLedger(stats func() ledger.Stats) {
	m.registry.MustRegister(ledgerCollector(stats))
}

// ObserveTraces adds how many spans were exported and dropped, as stats says at each scrape.
func (m *Metrics) ObserveTraces(stats func() (exported, dropped uint64)) {
	m.registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "berth_tracing_spans_exported_total", Help: "Spans that the endpoint for traces has taken.",
		}, func() float64 { n, _ := stats(); return float64(n) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "berth_tracing_spans_dropped_total", Help: "Spans that were lost, because the endpoint does not take them as fast as they come.",
		}, func() float64 { _, n := stats(); return float64(n) }),
	)
}

func (m *Metrics) observeVerb(verb, result string, took time.Duration) {
	m.requests.WithLabelValues(verb, result).Inc()
	m.verbs.WithLabelValues(verb).Observe(took.Seconds())
}

// Collector has figures that the server reads at each scrape, like a prometheus.Collector.
type Collector interface {
	Describe(chan<- *prometheus.Desc)
	// Collect is not called before Server.Open. Its ctx ends with the server.
	Collect(ctx context.Context, ch chan<- prometheus.Metric)
}

// watch adds the figures of a server, and of its daemon's collectors, to the metrics.
func (m *Metrics) watch(s *Server, more []Collector) {
	for _, r := range s.routes {
		if r.Call == nil {
			continue
		}
		for _, result := range results {
			m.requests.WithLabelValues(r.Verb, result)
		}
	}
	m.registry.MustRegister(&serverCollector{s, more})
}

// maxScrapes is how many scrapes the server answers at once. Other scrapes wait.
const maxScrapes = 4

// handler answers scrapes. A scrape has its place only until its answer is in memory: a client
// that does not read keeps no place, and a client that leaves early costs no line in the log.
func (m *Metrics) handler(log *slog.Logger) http.Handler {
	h := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog:           slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ErrorHandling:      promhttp.ContinueOnError,
		DisableCompression: true, // the unix socket and the loopback gain nothing by it
	})
	places := make(chan struct{}, maxScrapes)
	put := func(a *whole, r *http.Request) {
		defer func() { <-places }()
		h.ServeHTTP(a, r)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
		case <-r.Context().Done(): // the client has left, or the daemon stops
			return
		}
		a := whole{header: w.Header(), status: http.StatusOK}
		put(&a, r)
		w.WriteHeader(a.status)
		_, _ = w.Write(a.body.Bytes()) // a client that has left needs no answer
	})
}

// whole is an http.ResponseWriter that keeps an answer in memory.
type whole struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *whole) Header() http.Header         { return a.header }
func (a *whole) WriteHeader(status int)      { a.status = status }
func (a *whole) Write(p []byte) (int, error) { return a.body.Write(p) }

var (
	descExecuting = prometheus.NewDesc("berth_requests_executing", "Requests that are being executed.", nil, nil)
	descWaiting   = prometheus.NewDesc("berth_requests_waiting", "Requests that wait for their turn.", []string{"lane"}, nil)
	descAside     = prometheus.NewDesc("berth_requests_aside", "Requests that wait for others, and let others execute meanwhile.", nil, nil)
	descServing   = prometheus.NewDesc("berth_serving", "1 once the agent has restored what its ledger says.", nil, nil)
)

// serverCollector reads the server's figures, and its daemon's collectors, at each scrape.
type serverCollector struct {
	s    *Server
	more []Collector
}

func (c *serverCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descExecuting, descWaiting, descAside, descServing} {
		ch <- d
	}
	for _, m := range c.more {
		m.Describe(ch)
	}
}

func (c *serverCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	busy, waiting := c.s.queue.load()
	gauge(descExecuting, float64(busy))
	gauge(descAside, float64(len(c.s.asides)))
	for l, n := range waiting {
		gauge(descWaiting, float64(n), l.Name)
	}
	if !c.s.queue.isOpen() {
		gauge(descServing, 0)
		return // the daemon's figures are not known yet
	}
	gauge(descServing, 1)
	for _, m := range c.more {
		m.Collect(c.s.ctx, ch)
	}
}

var (
	descBatch   = prometheus.NewDesc("berth_ledger_commits_per_transaction", "Commits that one transaction of the ledger made durable.", nil, nil)
	descBusy    = prometheus.NewDesc("berth_ledger_busy_seconds_total", "Time spent in transactions.", nil, nil)
	descRecords = prometheus.NewDesc("berth_ledger_records", "Records in the ledger.", []string{"sort"}, nil)
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
		if i < len(st.Batches)-1 { // the last batch size has no upper bound
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
