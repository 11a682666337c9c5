package agent

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/events"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/routes"
)

// written holds what an agent has written into its log, and the events that the agent has told.
type written struct {
	mu     sync.Mutex
	text   bytes.Buffer
	events []api.Event
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

// read makes a rig's agent write into a new log.
func (r *rig) read() *written {
	w := &written{}
	r.core.Log = slog.New(slog.NewTextHandler(w, nil))
	r.core.Event = func(e api.Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events = append(w.events, e)
	}
	return w
}

// lines returns the lines that have a message, and forgets all lines.
func (w *written) lines(message string) (lines []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range strings.Lines(w.text.String()) {
		if strings.Contains(line, "msg=\""+message+"\"") || strings.Contains(line, "msg="+message+" ") {
			lines = append(lines, line)
		}
	}
	w.text.Reset()
	return lines
}

// told returns the events of a type.
func (w *written) told(typ string) (events []api.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Type == typ {
			events = append(events, e)
		}
	}
	return events
}

// Each ADD and each DEL leaves one line in the log, which names the attachment and says how
// long the verb took.
func TestTrail(t *testing.T) {
	r := start(t)
	w := r.read()
	wantLine := func(when, message, about string) {
		t.Helper()
		lines := w.lines(message)
		if want := regexp.MustCompile(about + ` took=[1-9][0-9.]*(µs|ms|s)\n$`); len(lines) != 1 || !want.MatchString(lines[0]) {
			t.Errorf("%s: the log says %q, want %s", when, lines, want)
		}
	}
	pod := nettest.Pod(t)
	req := request("c", pod)
	req.Args = "K8S_POD_NAMESPACE=blue;K8S_POD_NAME=web-0"
	const key = ` pod=blue/web-0 container=c interface=eth0 network=net addresses=10\.88\.0\.[0-9]+,fd00:88::[0-9a-f]+ id=[a-z2-7]+`
	r.add(req)
	wantLine("ADD", "attached", key)
	r.add(req)
	wantLine("ADD again", "already attached", key)
	r.del("c", true)
	wantLine("DEL", "detached", key)
	r.del("c", true)
	wantLine("DEL again", "nothing to detach", " container=c interface=eth0 network=net")
	r.add(request("d", pod))
	w.lines("")
	if _, err := r.GC(t.Context(), api.GCRequest{Network: "net"}, now()); err != nil {
		t.Error(err)
	}
	wantLine("GC", "detached by GC", " container=d interface=eth0 network=net addresses=.*")
}

// A request that fails leaves one line as well, which names the attachment and says how long
// the request took.
func TestFailedADDIsSaid(t *testing.T) {
	r := start(t)
	w := &written{}
	srv := routes.New(r.Agent, events.NewHub(1), server.Options{Metrics: server.NewMetrics(), Log: slog.New(slog.NewTextHandler(w, nil))})
	srv.Open()
	pod := nettest.Pod(t)
	nettest.Run(t, pod, "ip link add eth0 type veth peer name other")
	req := request("c", pod)
	req.Args = "K8S_POD_NAMESPACE=blue;K8S_POD_NAME=web-0"
	body, err := json.Marshal(req)
	must(t, err)
	answer := httptest.NewRecorder()
	srv.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, api.PathAttachments, bytes.NewReader(body)))
	want := regexp.MustCompile(` verb=add status=409 code=101 error="interface exists in the pod: .*" ` +
		`pod=blue/web-0 container=c interface=eth0 network=net took=[1-9][0-9.]*(µs|ms|s)\n$`)
	if lines := w.lines("request failed"); len(lines) != 1 || !want.MatchString(lines[0]) {
		t.Errorf("the answer is %s, and the log says %q, want %s", answer.Body, lines, want)
	}
}

// A repair is in the log and among the events, which say what was wrong and that it is mended.
func TestMendedIsSaid(t *testing.T) {
	r := start(t)
	host := r.add(request("c", nettest.Pod(t))).Interfaces[0].Name
	w := r.read()
	nettest.Run(t, r.node.Here, "ip link set "+host+" mtu 1400")
	r.Sweep(t.Context())
	drifts, mended := w.told(api.EventDrift), w.told(api.EventMended)
	if len(drifts) != 1 || len(mended) != 1 || mended[0].Message != drifts[0].Message || mended[0].Attachment == nil ||
		mended[0].Attachment.ContainerID != "c" || !strings.Contains(mended[0].Message, "1400") {
		t.Errorf("events: %+v, %+v", drifts, mended)
	}
	if lines := w.lines("mended what had changed"); len(lines) != 1 || !strings.Contains(lines[0], " container=c interface=eth0 ") || !strings.Contains(lines[0], "1400") {
		t.Errorf("the log says %q", lines)
	}
	r.Sweep(t.Context())
	if again := w.told(api.EventMended); len(again) != 1 {
		t.Errorf("a sweep that mends nothing tells of %+v", again[1:])
	}
}
