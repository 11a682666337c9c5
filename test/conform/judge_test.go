package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// The page has the reports that stayed, and leaves lists out of which none did. A report that cannot be read is an error, and so is a list that is not there.
func TestReportsStay(t *testing.T) {
	in := folders{bin: t.TempDir(), peers: t.TempDir(), reports: t.TempDir()}
	nettest.Must(t, os.WriteFile(filepath.Join(in.reports, "ptp.json"), []byte(`{"kernel": "6.0"}`), 0o644))
	judged, err := judgeAll(t.Context(), in, []string{}, 1)
	nettest.Must(t, err)
	if len(judged) != 1 || judged[0].name != "ptp" || judged[0].Kernel != "6.0" {
		t.Errorf("judged are %+v", judged)
	}
	if got := left(judged); len(got) != len(subjects)-1 {
		t.Errorf("without a report are %v", got)
	}
	nettest.Must(t, os.WriteFile(filepath.Join(in.reports, "bridge.json"), []byte(`{`), 0o644))
	if _, err := judgeAll(t.Context(), in, []string{}, 1); err == nil {
		t.Error("half a report is one")
	}
	if _, err := judgeAll(t.Context(), in, []string{"bridg"}, 1); err == nil {
		t.Error("there is a list bridg")
	}
}
