package routes_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/routes/routestest"
)

const (
	addBody = `{"containerID":"c1","ifname":"eth0","netns":{"path":"/run/netns/a","dev":4,"ino":4026531840,"id":7},` +
		`"args":"K8S_POD_NAME=web-0","config":{"cniVersion":"1.1.0","name":"net","type":"berth-cni"}}`
	statusBody = `{"config":{"cniVersion":"1.1.0","name":"net","type":"berth-cni","defaultNetworks":["storage"]}}`
	gcBody     = `{"network":"net","valid":[{"containerID":"c1","ifname":"eth0"}],"minAge":5,"dryRun":true}`
	allOf      = "network=net&container=c1&ifname=eth0&namespace=default&pod=web-0&uid=u1&address=fd00::7&link=babcdaaaaaaaaaa"
)

// example is a request whose answer the document has to describe.
type example struct {
	method, target, body string
	header               http.Header
	hook                 error // of the verb
	owed                 int
	wrong                bool // the request is not as the document says
	want                 int
}

// conversations returns requests for every operation, whose answers have every status that
// the document describes.
func conversations() []example {
	again := cni.Errorf(cni.CodeTryAgain, "not now", "d")
	failed := &api.Error{CNIVersion: "1.1.0", Code: cni.CodeIO, Msg: "the disk is full", Details: "d"}
	blanks := strings.Repeat(" ", api.MaxBody)
	tooMany := `{"ids":["aaaaaaaaaa"` + strings.Repeat(`,"aaaaaaaaaa"`, 1000) + `]}`
	expired := http.Header{api.HeaderDeadline: {"1"}}
	now := boottime.Now()
	placed := http.Header{
		api.HeaderStarted:  {strconv.FormatInt(now, 10)},
		api.HeaderDeadline: {strconv.FormatInt(now+int64(time.Minute), 10)},
	}
	const (
		one  = api.PathAttachments + "/aaaaaaaaaa"
		none = api.PathAttachments + "/zzzzzzzzzz"
	)
	list := []example{
		{method: "POST", target: api.PathAttachments, body: addBody, want: 200},
		{method: "POST", target: api.PathAttachments, body: `{}`, wrong: true, want: 400},
		{method: "POST", target: api.PathAttachments, body: addBody, hook: cni.Errorf(cni.CodeUnknown, "m", "d"), want: 404},
		{method: "POST", target: api.PathAttachments, body: addBody, hook: cni.Errorf(cni.CodeExhausted, "m", "d"), want: 503},
		{method: "POST", target: api.PathAttachments, body: addBody, hook: cni.Errorf(cni.CodeTaken, "m", "d"), want: 409},
		{method: "POST", target: api.PathAttachments, body: addBody, hook: cni.Errorf(cni.CodeNetns, "m", "d"), want: 400},
		{method: "POST", target: api.PathAttachments, body: addBody + blanks, want: 413},
		{method: "GET", target: api.PathAttachments, want: 200},
		{method: "GET", target: api.PathAttachments + "?state=owed&" + allOf, want: 200},
		{method: "GET", target: api.PathAttachments + "?container=../c1", wrong: true, want: 400},
		{method: "GET", target: api.PathAttachments + "?bogus=1", wrong: true, want: 400},
		{method: "DELETE", target: api.PathAttachments + "?wait=true&" + allOf, want: 200},
		{method: "DELETE", target: api.PathAttachments + "?container=c1", owed: 2, want: 206},
		{method: "DELETE", target: api.PathAttachments, want: 400},
		{method: "DELETE", target: api.PathAttachments + "?container=c2", want: 404},
		{method: "GET", target: one, want: 200},
		{method: "GET", target: none, want: 404},
		{method: "GET", target: api.PathAttachments + "/A", wrong: true, want: 400},
		{method: "DELETE", target: one, want: 200},
		{method: "DELETE", target: one + "?wait=true", owed: 1, want: 206},
		{method: "DELETE", target: one + "?wait=1", wrong: true, want: 400},
		{method: "DELETE", target: none, want: 404},
		{method: "POST", target: api.PathCheck, body: addBody, want: 200},
		{method: "POST", target: api.PathCheck, body: `[]`, wrong: true, want: 400},
		{method: "POST", target: api.PathCheck, body: addBody, hook: cni.Errorf(cni.CodeUnknown, "m", "d"), want: 404},
		{method: "POST", target: api.PathCheck, body: addBody, hook: cni.Errorf(cni.CodeCheck, "m", "d"), want: 409},
		{method: "POST", target: api.PathCheck, body: addBody + blanks, want: 413},
		{method: "POST", target: api.PathGC, body: gcBody, want: 200},
		{method: "POST", target: api.PathGC, body: `{"network":"net","valid":null}`, owed: 1, want: 206},
		{method: "POST", target: api.PathGC, body: `{"network":"net"}`, wrong: true, want: 400},
		{method: "POST", target: api.PathGC, body: gcBody + blanks, want: 413},
		{method: "POST", target: api.PathAdopt, body: `{"dryRun":true,"binDirs":["/opt/cni/bin"],"cniDirs":["/var/lib/multus"]}`, want: 200},
		{method: "POST", target: api.PathAdopt, body: `{"dryRun":1}`, wrong: true, want: 400},
		{method: "POST", target: api.PathAdopt, body: `{}` + blanks, want: 413},
		{method: "GET", target: api.PathStatus, want: 200},
		{method: "GET", target: api.PathStatus + "?pool=p", hook: cni.Errorf(cni.CodeConfig, "m", "d"), want: 400},
		{method: "GET", target: api.PathStatus, hook: cni.Errorf(cni.CodeNotAvailable, "m", "d"), want: 503},
		{method: "POST", target: api.PathStatus, body: statusBody, want: 200},
		{method: "POST", target: api.PathStatus, body: `{}`, wrong: true, want: 400},
		{method: "POST", target: api.PathStatus, body: statusBody, hook: cni.Errorf(cni.CodeLimited, "m", "d"), want: 503},
		{method: "POST", target: api.PathStatus, body: statusBody + blanks, want: 413},
		{method: "GET", target: api.PathPools, want: 200},
		{method: "GET", target: api.PathPools + "?bogus=1", wrong: true, want: 400},
		{method: "GET", target: api.PathHistory, want: 200},
		{method: "GET", target: api.PathHistory + "?pod=default/web-0&container=c0&address=fd00::7&at=2026-01-02T03:04:06Z&until=2026-01-02T03:05:06Z&since=2026-01-02T03:04:06Z&limit=3", want: 200},
		{method: "GET", target: api.PathHistory + "?at=14:05", wrong: true, want: 400},
		{method: "GET", target: api.PathEvents + "?since=0", want: 200},
		{method: "GET", target: api.PathEvents + "?since=-1", wrong: true, want: 400},
		{method: "GET", target: api.PathLedger, want: 200},
		{method: "GET", target: api.PathLedger + "?bogus=1", wrong: true, want: 400},
		{method: "GET", target: api.PathAudit, want: 200},
		{method: "GET", target: api.PathAudit + "?pods=true", want: 200},
		{method: "GET", target: api.PathAudit + "?pods=1", wrong: true, want: 400},
		{method: "GET", target: api.PathOwed, want: 200},
		{method: "GET", target: api.PathOwed + "?bogus=1", wrong: true, want: 400},
		{method: "POST", target: api.PathOwedRetry, body: `{}`, want: 200},
		{method: "POST", target: api.PathOwedRetry, want: 200},
		{method: "POST", target: api.PathOwedRetry, body: `{"ids":["aaaaaaaaaa"]}`, want: 200},
		{method: "POST", target: api.PathOwedRetry, body: `{"ids":["A"]}`, wrong: true, want: 400},
		{method: "POST", target: api.PathOwedRetry, body: tooMany, wrong: true, want: 400},
		{method: "POST", target: api.PathOwedRetry, body: `{}` + blanks, want: 413},
		{method: "GET", target: api.PathHealth, want: 200},
		{method: "GET", target: api.PathPods, want: 200},
		{method: "GET", target: api.PathPods + "?bogus=1", wrong: true, want: 400},
		{method: "GET", target: api.PathNodes, want: 200},
		{method: "GET", target: api.PathNodes + "?bogus=1", wrong: true, want: 400},
		{method: "GET", target: api.PathHealth + "?bogus=1", wrong: true, want: 400},
		{method: "GET", target: api.PathMetrics, want: 200},
		{method: "GET", target: api.PathOpenAPI, want: 200},
	}
	for _, e := range list {
		path, _, _ := strings.Cut(e.target, "?")
		switch {
		case e.want != 200 || slices.Contains([]string{api.PathEvents, api.PathHistory, api.PathMetrics, api.PathOpenAPI}, path):
			continue
		case path != api.PathHealth:
			e.header = placed
			list = append(list, e)
			e.header, e.hook, e.want = nil, failed, 500
			list = append(list, e)
			e.hook, e.want = again, 503
			list = append(list, e)
		}
		e.hook, e.header, e.want = nil, expired, 503
		list = append(list, e)
	}
	return list
}

// The document and the constants list the same words.
func TestOpenAPIWords(t *testing.T) {
	doc, _ := document(t)
	finding := doc.Components.Schemas["Audit"].Value.Properties["findings"].Value.Items.Value
	for _, c := range []struct {
		schema *openapi3.Schema
		want   []string
	}{
		{doc.Components.Schemas["State"].Value, api.States()},
		{doc.Components.Schemas["Event"].Value.Properties["type"].Value, api.EventTypes()},
		{doc.Components.Schemas["Past"].Value.Properties["askedBy"].Value, api.Askers()},
		{finding.Properties["type"].Value, api.FindingTypes()},
		{doc.Components.Schemas["Adopted"].Value.Properties["attachments"].Value.Items.Value.Properties["outcome"].Value, api.Outcomes()},
		{doc.Components.Schemas["Status"].Value.Properties["lacks"].Value.Items.Value, api.Lacks()},
	} {
		if got := fmt.Sprint(c.schema.Enum); got != fmt.Sprint(c.want) {
			t.Errorf("the document has %s, and the constants are %s", got, c.want)
		}
	}
}

// unseen are documented answers that no example can bring about.
var unseen = []string{"GET /metrics 503", "GET /v1/events 503", "GET /v1/history 503"} // too many at once

// TestOpenAPI compares the document with the server. Every request and answer is as the
// document says, and every operation and status of the document occurs.
func TestOpenAPI(t *testing.T) {
	doc, router := document(t)
	seen := map[string]bool{}
	for _, e := range conversations() {
		seen[converse(t, router, e)] = true
	}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			for status := range op.Responses.Map() {
				if what := fmt.Sprintf("%s %s %s", method, path, status); !seen[what] && !slices.Contains(unseen, what) {
					t.Errorf("%s is documented, and not seen", what)
				}
			}
		}
	}
}

func document(t *testing.T) (*openapi3.T, routers.Router) {
	t.Helper()
	openapi3filter.RegisterBodyDecoder("application/x-ndjson", openapi3filter.JSONBodyDecoder)
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	nettest.Must(t, err)
	nettest.Must(t, doc.Validate(t.Context()))
	router, err := legacy.NewRouter(doc)
	nettest.Must(t, err)
	return doc, router
}

// converse makes a request, validates it and its answer, and returns the operation and
// status of the document that it has seen.
func converse(t *testing.T, router routers.Router, e example) string {
	name := fmt.Sprintf("%s %.80s %.40s: %d", e.method, e.target, e.body, e.want)
	verbs := &routestest.Verbs{DeletedOwed: e.owed}
	verbs.Put(routestest.Attachment("aaaaaaaaaa", "c1"))
	if e.hook != nil {
		// Verbs that return no error cannot fail. They panic instead, so that the answer is
		// the server's own, which has to be documented as well.
		verbs.Hook = func(_ context.Context, verb string, _ server.When) error {
			if slices.Contains([]string{"list", "get", "pools", "ledger", "owed", "nodes"}, verb) {
				panic(e.hook)
			}
			return e.hook
		}
	}
	a := routestest.Start(t, verbs)
	a.Open()
	at := routestest.Attachment("aaaaaaaaaa", "c1")
	a.Events.Publish(api.Event{Type: "owed", Owner: at.ID, Message: "m", Attachment: &at})

	req, err := http.NewRequestWithContext(t.Context(), e.method, "http://berthd"+e.target, strings.NewReader(e.body))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if e.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	maps.Copy(req.Header, e.header)
	route, params, err := router.FindRoute(req)
	if err != nil {
		t.Fatalf("%s: not documented: %v", name, err)
	}
	input := &openapi3filter.RequestValidationInput{Request: req.Clone(t.Context()), PathParams: params, Route: route,
		Options: &openapi3filter.Options{IncludeResponseStatus: true}}
	input.Request.Body = io.NopCloser(strings.NewReader(e.body))
	if err := openapi3filter.ValidateRequest(t.Context(), input); err != nil && !e.wrong {
		t.Errorf("%s: request: %v", name, err)
	}
	status, header, body := exchange(t, a, req, route.Path == api.PathEvents && e.want == 200)
	panicked := status == 500 && e.want == 503 && strings.Contains(string(body), "panic")
	if status != e.want && !panicked {
		t.Errorf("%s: status %d: %s", name, status, body)
	}
	err = openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: status, Header: header, Body: io.NopCloser(bytes.NewReader(body)), Options: input.Options})
	if err != nil {
		t.Errorf("%s: answer: %v", name, err)
	}
	return fmt.Sprintf("%s %s %d", e.method, route.Path, status)
}

// exchange sends a request over the socket, and reads its answer, or the first line of an
// endless one.
func exchange(t *testing.T, a *routestest.Agent, req *http.Request, endless bool) (int, http.Header, []byte) {
	t.Helper()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return client.Dial(ctx, a.Dir.Socket())
	}}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	nettest.Must(t, err)
	defer resp.Body.Close()
	var body []byte
	for err == nil && !(endless && bytes.HasSuffix(body, []byte("\n"))) {
		chunk := make([]byte, 4096)
		var n int
		n, err = resp.Body.Read(chunk)
		body = append(body, chunk[:n]...)
	}
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, body
}
