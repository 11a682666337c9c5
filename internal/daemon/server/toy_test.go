package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/prometheus/client_golang/prometheus"
)

var must = nettest.Must

// The toy daemon's lanes, in the order of their turns.
var (
	laneMake  = Lane{Name: "make"}
	laneBreak = Lane{Name: "break", Deletions: true}
	laneLook  = Lane{Name: "look"}
)

// The toy daemon's paths.
const (
	pathToys  = "/v1/toys"
	pathState = "/v1/state"
	pathNews  = "/v1/news"
)

// toy is a daemon that makes and breaks toys, and has a route of each sort.
type toy struct {
	*Server
	metrics *Metrics
	dir     root.Dir
	client  *client.Client // for the routes that every server has
	news    news
	said    written

	// Every Call calls hook, if it is not nil, and returns its error.
	hook func(ctx context.Context, verb string, w When) error
}

// newToy returns a toy daemon that does not listen yet.
func newToy(t testing.TB, dir root.Dir, concurrency int) *toy {
	d := &toy{metrics: NewMetrics(), dir: dir, client: client.New(dir.Socket()), news: make(news)}
	d.Server = New(Options{
		Routes: d.routes(), Elsewhere: "look elsewhere", Metrics: d.metrics, Concurrency: concurrency,
		Status: func(code uint) int {
			switch code {
			case cni.CodeNetns:
				return http.StatusBadRequest
			case cni.CodeUnknown:
				return http.StatusNotFound
			}
			return OwnStatus(code)
		},
		Collectors: []Collector{shelf{prometheus.NewDesc("toy_shelf", "Toys on the shelf.", nil, nil)}},
		Log:        slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), &d.said), nil)),
	})
	return d
}

// startToy serves a toy daemon until the test ends. The daemon is not open yet.
func startToy(t testing.TB) *toy {
	t.Helper()
	d := newToy(t, root.Dir(t.TempDir()), 0)
	d.run(t)
	return d
}

// run serves until the test ends, or Shutdown.
func (d *toy) run(t testing.TB) {
	t.Helper()
	must(t, d.Listen(d.dir))
	ended := make(chan error, 1)
	go func() { ended <- d.Serve() }()
	t.Cleanup(func() {
		d.client.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := d.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
}

func (d *toy) routes() []Route {
	return []Route{
		{Method: "POST", Path: pathToys, Verb: "make", Call: d.call, Limit: time.Minute, Lane: laneMake},
		{Method: "DELETE", Path: pathToys + "/{id}", Verb: "break", Call: d.call, Parameters: []string{"wait"}, Limit: time.Minute, Lane: laneBreak, Finish: true},
		{Method: "GET", Path: pathToys, Verb: "look", Call: d.call, Limit: time.Minute, Lane: laneLook},
		{Method: "GET", Path: pathState, Verb: "state", Call: state, Limit: time.Second},
		{Method: "GET", Path: pathNews, Verb: "news", Stream: func(*Request) (Source, error) { return d.news, nil }},
	}
}

// written is what the daemon has written into its log.
type written struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

// take returns all that was written since the last take.
func (w *written) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.text.Reset()
	return w.text.String()
}

// call answers with the toy that the request names.
func (d *toy) call(r *Request) (*Answer, error) {
	made := struct{ Name string }{r.ID}
	r.About(func() []any { return []any{"toy", made.Name} })
	if r.http.Method == "POST" {
		if err := r.Body(&made, "name"); err != nil {
			return nil, err
		}
	}
	if _, err := r.Query.Flag("wait"); err != nil {
		return nil, err
	}
	if d.hook != nil {
		verb := map[string]string{"POST": "make", "DELETE": "break", "GET": "look"}[r.http.Method]
		if err := d.hook(r.Ctx, verb, r.When); err != nil {
			return nil, err
		}
	}
	return OK(made)
}

// state answers whether the daemon still restores.
func state(r *Request) (*Answer, error) { return OK(r.Restoring()) }

// news is a Source of what happened. The stream ends when somebody closes the channel.
type news chan string

func (n news) Next(ctx context.Context) (any, error) {
	if len(n) == 0 {
		select {
		case what, open := <-n:
			return what, ended(open)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return <-n, nil // also when ctx has ended, as events are
}

func ended(open bool) error {
	if open {
		return nil
	}
	return io.EOF
}

func (n news) Last(why error) any { return "the end: " + why.Error() }

// aToy is the body of a request that makes a toy.
const aToy = `{"name":"bear"}`

// asked is the answer to a request of ask.
type asked struct {
	status int
	header http.Header
	body   string
	err    error // the answer's error, or why there is no answer
}

// ask makes a request over the socket.
func (d *toy) ask(ctx context.Context, method, target, body string, header http.Header) asked {
	req, err := http.NewRequestWithContext(ctx, method, "http://daemon"+target, strings.NewReader(body))
	if err != nil {
		return asked{err: err}
	}
	maps.Copy(req.Header, header)
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return client.Dial(ctx, d.dir.Socket())
	}}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return asked{err: err}
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	a := asked{resp.StatusCode, resp.Header, string(raw), err}
	if a.status >= 400 && err == nil {
		e := new(api.Error)
		a.err = cmp.Or[error](json.Unmarshal(raw, e), e)
	}
	return a
}

func (d *toy) makeOne(ctx context.Context) error { return d.ask(ctx, "POST", pathToys, aToy, nil).err }
func (d *toy) breakOne(ctx context.Context) error {
	return d.ask(ctx, "DELETE", pathToys+"/bear", "", nil).err
}
func (d *toy) look(ctx context.Context) error { return d.ask(ctx, "GET", pathToys, "", nil).err }

// waitFor waits until the metrics have a line.
func (d *toy) waitFor(t *testing.T, line string) {
	t.Helper()
	for !strings.Contains("\n"+d.ask(t.Context(), "GET", api.PathMetrics, "", nil).body, "\n"+line+"\n") {
		if t.Context().Err() != nil {
			t.Fatalf("never: %s", line)
		}
	}
}

// wantCode wants an *api.Error of a code whose text has words.
func wantCode(t *testing.T, err error, code uint, words string) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Error(), words) {
		t.Errorf("got %v, want code %d with %q", err, code, words)
	}
}
