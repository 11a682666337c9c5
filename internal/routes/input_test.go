package routes_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/events"
	"github.com/berth-net/berth/internal/routes"
	"github.com/berth-net/berth/internal/routes/routestest"
)

// TestBadInput has requests that must not reach a verb, with the answer to each
// (CVE-2022-31030: large input took all memory).
func TestBadInput(t *testing.T) {
	a := routestest.Start(t, &routestest.Verbs{Hook: func(_ context.Context, verb string, _ server.When) error {
		panic(verb + " was executed")
	}})
	a.Open()
	long := strings.Repeat("x", api.MaxID+1)
	add := func(old, new string) string { return strings.Replace(addBody, old, new, 1) }
	for _, test := range []struct {
		method, target, body string
		status               int
		code                 string
		want                 string
	}{
		{"GET", "/v2/attachments", "", 404, "4", "no such path"},
		{"GET", "/", "", 404, "4", "/openapi.yaml lists all paths"},
		{"GET", "/v1//attachments", "", 404, "4", "no such path"},
		{"PUT", api.PathAttachments, addBody, 405, "4", "has DELETE, GET, POST"},
		{"PUT", api.PathStatus, "", 405, "4", "has GET, POST"},
		{"POST", api.PathStatus, "{}", 400, "7", `lacks \"config\"`},
		{"POST", api.PathStatus, `{"config":{}}`, 400, "7", "name"},
		{"POST", api.PathStatus + "?pool=a", `{"config":{}}`, 400, "4", "takes no parameters"},
		{"GET", api.PathStatus, "{}", 400, "6", "takes no body"},
		{"DELETE", api.PathAttachments + "?container=c1", "{}", 400, "6", "takes no body"},

		{"GET", api.PathAttachments + "/", "", 400, "4", "invalid attachment id"},
		{"DELETE", api.PathAttachments + "/", "", 400, "4", "invalid attachment id"},
		{"DELETE", api.PathAttachments + "/aaaaaaaaaa/x", "", 400, "4", "invalid attachment id"},
		{"GET", api.PathAttachments + "/..%2f..%2fx", "", 400, "4", "invalid attachment id"},
		{"GET", api.PathAttachments + "/AAAAAAAAAA", "", 400, "4", "not one of a-z, 2-7"},

		{"GET", api.PathAttachments + "?a=%zz", "", 400, "4", "invalid query"},
		{"GET", api.PathAttachments + "?container=a;ifname=b", "", 400, "4", "invalid query"},
		{"GET", api.PathAttachments + "?Container=c1", "", 400, "4", "unknown query parameter"},
		{"GET", api.PathAttachments + "?wait=true", "", 400, "4", "expected network, container"},
		{"GET", api.PathAttachments + "?container=a&container=b", "", 400, "4", "it appears 2 times"},
		{"GET", api.PathAttachments + "?container=", "", 400, "4", "it is empty"},
		{"GET", api.PathAttachments + "?container=" + long, "", 400, "4", "129 bytes"},
		{"GET", api.PathAttachments + "?network=a/b", "", 400, "4", "invalid query parameter network"},
		{"GET", api.PathAttachments + "?ifname=0123456789abcdef", "", 400, "4", "invalid query parameter ifname"},
		{"GET", api.PathAttachments + "?link=a%20b", "", 400, "4", "invalid query parameter link"},
		{"GET", api.PathAttachments + "?pod=a%0ab", "", 400, "4", "printable"},
		{"GET", api.PathAttachments + "?uid=" + long, "", 400, "4", "at most 128"},
		{"GET", api.PathAttachments + "?state=gone", "", 400, "4", "one of attaching, attached, releasing, owed"},
		{"GET", api.PathAttachments + "?address=10.88.0.7/32", "", 400, "4", "without a prefix length"},
		{"GET", api.PathAttachments + "?address=fe80::1%25eth0", "", 400, "4", "without a prefix length"},
		{"GET", api.PathStatus + "?pool=%00", "", 400, "4", "a pool's name"},
		{"GET", api.PathEvents + "?since=now", "", 400, "4", "the number of an event"},
		{"GET", api.PathHistory + "?until=2026-01-02T03:04:06Z", "", 400, "4", "a time after that of the parameter at"},
		{"GET", api.PathHistory + "?at=2026-01-02T03:04:06Z&until=2026-01-02T03:04:06Z", "", 400, "4", "a time after that of the parameter at"},

		{"DELETE", api.PathAttachments, "", 400, "4", "a deletion must name a container"},
		{"DELETE", api.PathAttachments + "?network=net&ifname=eth0", "", 400, "4", "a deletion must name a container"},
		{"DELETE", api.PathAttachments + "?pod=web-0", "", 400, "4", "a namespace and a pod"},
		{"DELETE", api.PathAttachments + "?container=c1&state=owed", "", 400, "4", "unknown query parameter"},
		{"DELETE", api.PathAttachments + "?container=c1&wait=yes", "", 400, "4", "true or false"},

		{"POST", api.PathAttachments, "", 400, "6", "expected an object"},
		{"POST", api.PathAttachments, "null", 400, "6", "expected an object"},
		{"POST", api.PathAttachments, addBody + "{}", 400, "6", "nothing more after"},
		{"POST", api.PathAttachments, add(`"ifname"`, `"bogus":1,"ifname"`), 400, "6", `unknown field \"bogus\"`},
		{"POST", api.PathAttachments, add(`"ifname"`, `"containerID":"c2","ifname"`), 400, "6", "appears twice"},
		{"POST", api.PathAttachments, add(`"c1"`, `5`), 400, "6", `\"containerID\" is a number; expected a string`},
		{"POST", api.PathAttachments, add(`{"path":"/run/netns/a","dev":4,"ino":4026531840,"id":7}`, `"/run/netns/a"`), 400, "6", `\"netns\" is a string; expected an object with path, dev, ino, id`},
		{"POST", api.PathAttachments, add(`"containerID":"c1",`, ``), 400, "7", `lacks \"containerID\"`},
		{"POST", api.PathAttachments, add(`"containerID"`, `"containerid"`), 400, "7", `lacks \"containerID\"`},
		{"POST", api.PathAttachments, add(`"c1"`, `"../c1"`), 400, "4", "CNI_CONTAINERID"},
		{"POST", api.PathAttachments, add(`"eth0"`, `"a/b"`), 400, "4", "CNI_IFNAME"},
		{"POST", api.PathAttachments, add(`"/run/netns/a"`, `"netns/a"`), 400, "4", "CNI_NETNS"},
		{"POST", api.PathAttachments + "?wait=true", addBody, 400, "4", "this request takes no parameters"},
		{"POST", api.PathCheck, "{}", 400, "7", "incomplete"},
		{"POST", api.PathGC, `{"network":"net"}`, 400, "7", `lacks \"valid\"`},
		{"POST", api.PathGC, `{"valid":[]}`, 400, "7", `lacks \"network\"`},
		{"POST", api.PathGC, `{"network":"","valid":[]}`, 400, "7", "name"},
		{"POST", api.PathGC, `{"network":"net","valid":[{"containerID":"c1"}]}`, 400, "7", "ifname"},
		{"POST", api.PathGC, `{"network":"net","valid":[],"minAge":-1}`, 400, "7", "minAge"},
		{"POST", api.PathGC, `{"network":"net","valid":[]` + strings.Repeat(" ", api.MaxBody) + `}`, 413, "6", "1048576 bytes"},
		{"POST", api.PathAdopt, `{"binDirs":["opt/cni/bin"]}`, 400, "7", "binDirs"},
		{"POST", api.PathAdopt, `{"binDirs":["/opt/a:/opt/b"]}`, 400, "7", "without a colon"},
		{"POST", api.PathAdopt, `{"cniDirs":["/a\nb"]}`, 400, "7", "cniDirs"},
		{"POST", api.PathAdopt, `{"cniDirs":["/a"` + strings.Repeat(`,"/a"`, 16) + `]}`, 400, "7", "at most 16"},
		{"POST", api.PathAdopt, `{"dryrun":true,"dryRun":false,"x":1}`, 400, "6", "unknown field"},
	} {
		status, h, body := request(t, a, test.method, test.target, test.body, nil)
		if status != test.status || !strings.Contains(body, `"code":`+test.code+`,`) || !strings.Contains(body, test.want) {
			t.Errorf("%s %.90s %.60s\n got %d %s\nwant %d code %s with %q", test.method, test.target, test.body, status, body, test.status, test.code, test.want)
		}
		if got := h.Get("Content-Type"); got != "application/json" {
			t.Errorf("%s %s: content type %q", test.method, test.target, got)
		}
	}
}

// handler returns a server without a socket, for fuzzing.
func handler() *server.Server {
	s := routes.New(&routestest.Verbs{}, events.NewHub(1), server.Options{Metrics: server.NewMetrics(), Log: slog.New(slog.DiscardHandler)})
	s.Open()
	return s
}

// fuzzed makes a request, and wants an answer of the API's form.
func fuzzed(t *testing.T, s *server.Server, method string, u *url.URL, body string) {
	r := &http.Request{Method: method, URL: u, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body))}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r.WithContext(t.Context()))
	switch {
	case !json.Valid(w.Body.Bytes()):
		t.Fatalf("%s %v: %d, not JSON: %q", method, u, w.Code, w.Body)
	case w.Code == 200:
	case w.Code >= 500:
		t.Fatalf("%s %v %q: %d %s", method, u, body, w.Code, w.Body)
	default:
		var e api.Error
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Code == 0 || e.Msg == "" || e.Details == "" {
			t.Fatalf("%s %v: %d %s: not a whole error", method, u, w.Code, w.Body)
		}
	}
}

func FuzzAddBody(f *testing.F) {
	for _, body := range []string{
		addBody, gcBody, ``, `{}`, `null`, `[]`, `{"containerID":"a"}`, `{"network":"n","valid":null}`,
		`{"network":"n","valid":[null]}`, `{"config":null,"netns":null,"ifname":null,"containerID":null}`,
		`{"containerID":"a","ifname":"b","netns":{"path":"/x","dev":-1},"config":[]}`, `{"minAge":1e99}`,
		statusBody, strings.Replace(addBody, `7}`, `18446744073709551616}`, 1), strings.Repeat(`{"a":`, 100), "{\"a\":\"\xff\"}",
	} {
		f.Add(body)
	}
	s := handler()
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range []string{api.PathAttachments, api.PathCheck, api.PathGC, api.PathAdopt, api.PathStatus} {
			fuzzed(t, s, "POST", &url.URL{Path: path}, body)
		}
	})
}

func FuzzQuery(f *testing.F) {
	for _, seed := range [][2]string{
		{api.PathAttachments, allOf}, {api.PathAttachments, "state=owed"}, {api.PathAttachments, "address=::ffff:10.0.0.1"},
		{api.PathAttachments, "a=%zz"}, {api.PathAttachments, "container=a;b"}, {api.PathAttachments + "/aaaaaaaaaa", "wait=true"},
		{api.PathAttachments + "/..", ""}, {api.PathStatus, "pool=x"}, {"", "="}, {"/v1/pools", "&&&"}, {"*", ""},
	} {
		f.Add(seed[0], seed[1])
	}
	s := handler()
	f.Fuzz(func(t *testing.T, path, query string) {
		switch path {
		case api.PathEvents, api.PathMetrics, api.PathOpenAPI: // endless, or no JSON
			return
		}
		for _, method := range []string{"GET", "DELETE", "PUT"} {
			fuzzed(t, s, method, &url.URL{Path: path, RawQuery: query}, "")
		}
	})
}
