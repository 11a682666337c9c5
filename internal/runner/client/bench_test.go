package client_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/berth-net/berth/internal/root"
)

// BenchmarkExec runs a plugin through the runner and, each time, by libcni itself; "ratio" is the time of the
// one divided by the time of the other, and "added-µs" their difference. The plugin is a shell that prints a result:
// it takes less time than any real plugin, so that a real plugin's ratio is smaller.
func BenchmarkExec(b *testing.B) {
	dir, err := os.MkdirTemp("/dev/shm", "runner") // as /run is, which has the runner's records
	must(b, err)
	defer os.RemoveAll(dir)
	exec, bin := serveAt(b, root.Dir(dir))
	script(b, bin, "plugin", `read conf; echo '`+prints+`'`)
	direct := &invoke.DefaultExec{RawExec: &invoke.RawExec{}}
	stdin := []byte(`{"cniVersion":"1.0.0","name":"net","type":"plugin"}` + "\n")
	env := []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=pod", "CNI_PATH=" + bin, "PATH=/usr/bin:/bin"}
	run := func(e invoke.Exec) time.Duration {
		began := time.Now()
		path, err := e.FindInPath("plugin", []string{bin})
		if err == nil {
			_, err = e.ExecPlugin(b.Context(), path, stdin, env)
		}
		if err != nil {
			b.Fatal(err)
		}
		if path != filepath.Join(bin, "plugin") {
			b.Fatal(path)
		}
		return time.Since(began)
	}
	var through, by time.Duration
	for b.Loop() {
		through += run(exec)
		by += run(direct)
	}
	b.ReportMetric(float64(through)/float64(by), "ratio")
	b.ReportMetric(float64((through-by).Microseconds())/float64(b.N), "added-µs")
}
