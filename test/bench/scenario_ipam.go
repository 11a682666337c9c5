package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// claimFree is the benchmark whose worst case has a target; aMap is what it is compared with.
const (
	claimFree = "ClaimFree/"
	aMap      = "Map"
)

// addresses runs the benchmarks of internal/ipam, which measure how long it takes to claim
// and free an address in memory.
func addresses(ctx context.Context, b *bench) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-run=^$", "-bench=.", "-count=3",
		fmt.Sprintf("-benchtime=%dms", b.pick(500, 100)), "github.com/berth-net/berth/internal/ipam")
	cmd.Env = append(os.Environ(), "GOPROXY=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("running %s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	took := make(map[string][]float64)
	var order []string
	for line := range strings.Lines(string(out)) {
		name, ns, ok := parseBenchmark(line)
		if !ok {
			continue
		}
		if took[name] == nil {
			order = append(order, name)
		}
		took[name] = append(took[name], ns)
	}
	t := b.report.section("Addresses, in memory (internal/ipam)", "benchmark", "ns, median of 3")
	worst := 0.0
	for _, name := range order {
		ns := median(took[name])
		t.row(name, fmt.Sprintf("%.1f", ns))
		if pool, ok := strings.CutPrefix(name, claimFree); ok {
			worst = max(worst, ns/float64(1+strings.Count(pool, "+"))) // "16+64" claims two addresses
		}
	}
	if worst == 0 {
		return fmt.Errorf("no benchmark of internal/ipam begins with %s", claimFree)
	}
	b.report.atMost("claim and free an address in memory, slowest pool", worst, 150, "ns")
	if took[aMap] != nil {
		b.report.atMost("claim and free an address in memory, slowest pool / put into a Go map and delete", worst/median(took[aMap]), 2, "x")
	}
	return nil
}

// parseBenchmark reads a line of go test's, such as
// "BenchmarkClaimFree/v4_/16-2   8000000   95.3 ns/op".
func parseBenchmark(line string) (name string, ns float64, ok bool) {
	f := strings.Fields(line)
	name, ok = strings.CutPrefix(line, "Benchmark")
	if !ok || len(f) < 4 || f[3] != "ns/op" {
		return "", 0, false
	}
	name, _, _ = strings.Cut(name, " ")
	name, _, _ = strings.Cut(name, "\t")
	if cut := strings.LastIndexByte(name, '-'); cut >= 0 { // GOMAXPROCS
		name = name[:cut]
	}
	ns, err := strconv.ParseFloat(f[2], 64)
	return name, ns, err == nil
}
