package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/root"
)

// TestNextLine reads every sort of line that a stream has.
func TestNextLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := make(news, 2)
		ctx, cancel := context.WithCancelCause(t.Context())
		line := func(ctx context.Context, wantLast bool) (s string) {
			t.Helper()
			line, last := nextLine(ctx, source)
			if err := json.Unmarshal(line, &s); err != nil || last != wantLast || !strings.HasSuffix(string(line), "\"\n") {
				t.Fatalf("%q, last %v: %v", line, last, err)
			}
			return s
		}

		source <- "a bear"
		if s := line(ctx, false); s != "a bear" {
			t.Errorf("the line is %q", s)
		}

		began := time.Now()
		if line, last := nextLine(ctx, source); string(line) != "\n" || last || time.Since(began) != keepAlive {
			t.Errorf("after %v without news: %q, last %v", time.Since(began), line, last)
		}

		source <- "a wolf"
		cancel(errStopping)
		line(ctx, false) // the event from before the stop
		if s := line(ctx, true); s != "the end: the agent is stopping" {
			t.Errorf("at the stop: %q", s)
		}

		gone, leave := context.WithCancel(t.Context())
		leave()
		if line, last := nextLine(gone, source); line != nil || !last {
			t.Errorf("to a reader that is gone: %q, last %v", line, last)
		}

		close(source)
		if s := line(t.Context(), true); s != "the end: EOF" {
			t.Errorf("of a source that has ended: %q", s)
		}
	})
}

// If streams have as many readers as they may, the server tells one more reader to try again. It lets
// this reader in when another reader has left.
func TestReadersAreBounded(t *testing.T) {
	d := newToy(t, root.Dir(t.TempDir()), 0)
	at := httptest.NewServer(d)
	defer at.Close()
	read := func() *http.Response {
		t.Helper()
		res, err := at.Client().Get(at.URL + pathNews) // this returns when the stream has begun
		must(t, err)
		return res
	}
	var readers []*http.Response
	for i := range maxReaders {
		readers = append(readers, read())
		defer readers[i].Body.Close()
		if code := readers[i].StatusCode; code != http.StatusOK {
			t.Fatalf("reader %d is answered %d", i, code)
		}
	}
	refused := read()
	defer refused.Body.Close()
	said := new(api.Error)
	must(t, json.NewDecoder(refused.Body).Decode(said))
	wantCode(t, said, cni.CodeTryAgain, "too many readers of news")
	readers[0].Body.Close()
	d.readers <- struct{}{} // there is room once the server has noticed that a reader left
	<-d.readers
	next := read()
	defer next.Body.Close()
	if next.StatusCode != http.StatusOK {
		t.Errorf("after another has left, a reader is answered %d", next.StatusCode)
	}
}
