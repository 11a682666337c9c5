package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// maxSize is how large the plugin may be, in bytes.
const maxSize = 2_500_000

// A runtime executes the plugin for every verb, so the plugin is small (cilium, general: plugins of
// 17 to 79 MB).
func TestSize(t *testing.T) {
	info, err := os.Stat(filepath.Join(bin, "berth-cni"))
	must(t, err)
	t.Logf("%d bytes", info.Size())
	if info.Size() > maxSize {
		t.Errorf("the plugin has %d bytes, more than %d", info.Size(), maxSize)
	}
}

// These packages take longer to start than the plugin runs: net brings a resolver,
// net/netip a goroutine (by unique), hash/crc32 tables, the others what they
// need.
func TestImports(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	must(t, err)
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, "os") {
		t.Fatalf("no list of packages: %q", out)
	}
	for _, heavy := range []string{"net", "net/netip", "net/url", "unique", "regexp", "log", "flag", "text/template", "context", "crypto", "hash/crc32"} {
		if slices.Contains(deps, heavy) {
			t.Errorf("the plugin imports %s", heavy)
		}
	}
}

// The plugin gives up its second processor before any package allocates, or else the change costs
// more than it saves.
func TestOneProcessor(t *testing.T) {
	cmd := exec.Command(filepath.Join(bin, "berth-cni"))
	cmd.Env = []string{"CNI_COMMAND=VERSION", "GODEBUG=inittrace=1"}
	var trace strings.Builder
	cmd.Stderr = &trace
	must(t, cmd.Run())
	before, after, ok := strings.Cut(trace.String(), "init github.com/berth-net/berth/internal/oneproc ")
	if !ok || strings.Contains(before, "init internal/godebug ") || !strings.Contains(after, "init os ") {
		t.Errorf("oneproc is not the first package that is initialized:\n%s", trace.String())
	}
}

// BenchmarkExec compares the plugin, which answers VERSION or does a whole DEL, with a program
// that does nothing.
func BenchmarkExec(b *testing.B) {
	empty := filepath.Join(b.TempDir(), "empty.go")
	must(b, os.WriteFile(empty, []byte("package main\n\nfunc main() {}\n"), 0o600))
	must(b, build(empty, "empty"))
	root := b.TempDir()
	a := &agent{root: root}
	must(b, a.start())
	defer a.stop()
	a.answer("200", `{"released":1,"owed":0}`)
	programs := []struct{ name, program, command string }{
		{"empty", "empty", ""}, {"VERSION", "berth-cni", "VERSION"}, {"DEL", "berth-cni", "DEL"},
	}
	times := make([][]time.Duration, len(programs))
	for b.Loop() { // in turn, so that a busy moment hits all
		for i, p := range programs {
			cmd := exec.Command(filepath.Join(bin, p.program))
			for k, v := range podEnv(p.command) {
				cmd.Env = append(cmd.Env, k+"="+v)
			}
			cmd.Stdin = strings.NewReader(conf(root, ""))
			began := time.Now()
			if err := cmd.Run(); err != nil {
				b.Fatalf("%s: %v", p.name, err)
			}
			times[i] = append(times[i], time.Since(began))
		}
	}
	b.ReportMetric(0, "ns/op")
	floor := median(times[0])
	for i, p := range programs {
		b.ReportMetric(float64(median(times[i]).Microseconds())/1000, p.name+"-p50-ms")
		b.ReportMetric(float64(median(times[i]))/float64(floor), p.name+"/empty")
	}
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}
