package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/bundle"
	"github.com/berth-net/berth/internal/nettest"
)

// open returns the files of an archive.
func open(t *testing.T, raw []byte) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(raw))
	nettest.Must(t, err)
	files := map[string]string{}
	for archive := tar.NewReader(zip); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		nettest.Must(t, err)
		if h.Mode != 0o600 {
			t.Errorf("%s has mode %o", h.Name, h.Mode)
		}
		content, err := io.ReadAll(archive)
		nettest.Must(t, err)
		name, ok := strings.CutPrefix(h.Name, "folder/")
		if !ok {
			t.Errorf("%s is not in the folder", h.Name)
		}
		files[name] = string(content)
	}
}

// A part that fails, hangs or is too large leaves a file that says so, and what there was of it.
func TestWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		released := make(chan struct{})
		defer close(released)
		says := func(text string, err error) func(context.Context, io.Writer) error {
			return func(_ context.Context, w io.Writer) error {
				for _, r := range text {
					if _, err := fmt.Fprint(w, string(r)); err != nil {
						return err
					}
				}
				return err
			}
		}
		var out bytes.Buffer
		begun := time.Now()
		err := bundle.Write(t.Context(), &out, "folder", begun, "about all", []bundle.Part{
			{Name: "good", What: "what is good", Write: says("text", nil)},
			{Name: "empty", What: "nothing", Write: says("", nil)},
			{Name: "bad", Write: says("", errors.New("no such thing"))},
			{Name: "half", Write: says("be", errors.New("broke off"))},
			{Name: "large", Max: 4, Write: says("0123456789", nil)},
			{Name: "tail", Max: 4, Tail: true, Write: says("0123456789", nil)},
			{Name: "whole", Max: 10, Tail: true, Write: says("0123456789", nil)},
			{Name: "hangs", Limit: time.Minute, Write: func(_ context.Context, w io.Writer) error {
				_, _ = io.WriteString(w, "begun")
				<-released
				return nil
			}},
			{Name: "late", Limit: time.Minute, Write: func(ctx context.Context, _ io.Writer) error {
				select { // the part's context ends a moment before Write stops waiting for the part, or after
				case <-ctx.Done():
				case <-released:
				}
				return ctx.Err()
			}},
		})
		nettest.Must(t, err)
		if took := time.Since(begun); took != time.Minute {
			t.Errorf("it took %s: parts wait for each other", took)
		}
		files := open(t, out.Bytes())
		for name, want := range map[string]string{
			"good": "text", "empty": "", "bad.error": "no such thing\n", "half": "be", "half.error": "broke off\n",
			"large": "0123", "large.error": "it is too large: only the first 4 bytes are here, 6 are not\n",
			"tail": "6789", "tail.error": "it is too large: only the last 4 bytes are here, 6 are not\n",
			"whole": "0123456789", "hangs": "begun", "hangs.error": "it was not done within 1m0s\n",
		} {
			if have, there := files[name]; !there || have != want {
				t.Errorf("%s: %q, want %q", name, have, want)
			}
		}
		for _, name := range []string{"good.error", "empty.error", "bad", "whole.error"} {
			if _, there := files[name]; there {
				t.Errorf("there is %s", name)
			}
		}
		if files["late.error"] == "" {
			t.Error("a part that is late leaves no error")
		}
		for _, want := range []string{"about all\n", "good   what is good\n", "empty  nothing\n"} {
			if !strings.Contains(files["README"], want) {
				t.Errorf("README has no %q:\n%s", want, files["README"])
			}
		}
	})
}

// An archive that cannot be written is an error.
func TestWriteFails(t *testing.T) {
	full := errors.New("full")
	part := bundle.Part{Name: "part", Write: func(context.Context, io.Writer) error { return nil }}
	if err := bundle.Write(t.Context(), fails{full}, "folder", time.Time{}, "", []bundle.Part{part}); !errors.Is(err, full) {
		t.Errorf("%v", err)
	}
}

type fails struct{ error }

func (f fails) Write([]byte) (int, error) { return 0, f.error }
