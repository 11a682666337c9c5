package networks

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nad"
	"github.com/berth-net/berth/internal/nettest"
)

// benched are who attaches and detaches the pods of BenchmarkThree; "plugins" are the plugins alone.
var benched = []string{"multus", "berth-cni", "plugins"}

// BenchmarkThree attaches and detaches a pod with three networks by ptp, bridge and macvlan: by Multus, by Berth, and by the plugins alone,
// which the benchmark executes one after the other. Each iteration does it by all three, in an order that changes with each; two iterations
// ahead of the others are not measured. The figures are medians in milliseconds, and two medians of ratios of times of one iteration:
//
//   - alone: to the time of the plugins alone, which ran a moment before or after;
//   - own (of Berth's): to the sum of the times that the processes of the three plugins took within this very ADD or DEL, from their start to their
//     end, as berth-runner logs them.
//
// go test -run - -bench Three -benchtime 30x ./test/networks
func BenchmarkThree(bench *testing.B) {
	b := newBoth(bench, false)
	b.stopRunner()
	ran := b.startLoudRunner()
	configs := []string{
		`{"cniVersion":"1.0.0","name":"one","type":"ptp",` + b.local("10.1.0.0/24") + `}`,
		`{"cniVersion":"1.0.0","name":"two","type":"bridge","bridge":"br9",` + b.local("10.2.0.0/24") + `}`,
		`{"cniVersion":"1.0.0","name":"three","type":"macvlan","master":"br8",` + b.local("10.3.0.0/24") + `}`,
	}
	b.define("two", configs[1])
	b.define("three", configs[2])
	b.pod("default", "web", kubetest.Object{nad.KeyNetworks: "two,three"})
	const unmeasured = 2
	took := map[string][]float64{} // by verb and who; in milliseconds, one an iteration
	for i := range unmeasured + bench.N {
		if i == unmeasured {
			took = map[string][]float64{}
		}
		for j := range benched {
			by := benched[(i+j)%len(benched)]
			at := nettest.Pod(bench)
			container := containerOf(i, by)
			for _, verb := range []string{"ADD", "DEL"} {
				begin := time.Now()
				if by == "plugins" {
					b.alone(verb, container, at.Ref().Path, configs)
				} else {
					_, err := b.exec(request{plugin: by, verb: verb, container: container, namespace: "default", name: "web", netns: at.Ref().Path, version: "1.0.0", keys: `,"delegates":[` + configs[0] + `]`})
					must(bench, err)
				}
				took[verb+" "+by] = append(took[verb+" "+by], milliseconds(time.Since(begin)))
			}
			nettest.Eventually(bench, "the pod to be gone", func() bool { return len(b.files()) == 0 })
			nettest.Delete(bench, at)
		}
	}
	own := ran()
	for _, verb := range []string{"ADD", "DEL"} {
		alone := took[verb+" plugins"]
		bench.ReportMetric(median(alone), verb+"-plugins-ms")
		for _, by := range []string{"multus", "berth-cni"} {
			bench.ReportMetric(median(took[verb+" "+by]), verb+"-"+by+"-ms")
			bench.ReportMetric(median(ratios(took[verb+" "+by], alone)), verb+"-"+by+"/alone")
		}
		var sums []float64
		for i := range bench.N {
			sums = append(sums, own[verb+" "+containerOf(unmeasured+i, "berth-cni")])
		}
		bench.ReportMetric(median(sums), verb+"-own-ms")
		bench.ReportMetric(median(ratios(took[verb+" berth-cni"], sums)), verb+"-berth-cni/own")
	}
}

// containerOf is the container of an iteration's pod.
func containerOf(i int, by string) string { return fmt.Sprintf("c-%d-%s", i, by) }

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func median(all []float64) float64 { return slices.Sorted(slices.Values(all))[len(all)/2] }

// ratios are those of times of the same iteration.
func ratios(of, to []float64) (all []float64) {
	for i := range of {
		all = append(all, of[i]/to[i])
	}
	return all
}

// startLoudRunner starts a berth-runner that logs each execution. ran ends the runner, and returns the sum of the times that the executions for
// each verb and container took, in milliseconds.
func (n *node) startLoudRunner() (ran func() map[string]float64) {
	n.t.Helper()
	var said bytes.Buffer
	n.startRunnerWith(&said, "--log-level", "debug")
	return func() map[string]float64 {
		n.t.Helper()
		must(n.t, n.runner.Process.Signal(syscall.SIGTERM))
		must(n.t, n.runner.Wait())
		sums := map[string]float64{}
		for line := range strings.Lines(said.String()) {
			m := executed.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			took, err := time.ParseDuration(m[3])
			must(n.t, err)
			sums[m[1]+" "+m[2]] += milliseconds(took)
		}
		return sums
	}
}

// executed is what berth-runner logs of an execution: verb, container, and how long it took.
var executed = regexp.MustCompile(`msg="a plugin has run" plugin="\S+ (\S+)" container=(\S+) .* ran=(\S+)`)

// alone executes the plugins of a pod's networks themselves: in order, or for DEL in reverse.
func (b *both) alone(verb, container, netns string, configs []string) {
	b.t.Helper()
	for i := range configs {
		if verb == "DEL" {
			i = len(configs) - 1 - i
		}
		name := []string{"ptp", "bridge", "macvlan"}[i]
		var out bytes.Buffer
		cmd := exec.Command(filepath.Join(b.plugins, name))
		cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + container, "CNI_NETNS=" + netns, "CNI_IFNAME=" + []string{"eth0", "net1", "net2"}[i], "CNI_PATH=" + b.plugins}
		cmd.Stdin, cmd.Stdout = strings.NewReader(configs[i]), &out
		if err := cmd.Run(); err != nil {
			b.t.Fatalf("%s %s: %v: %s", verb, name, err, &out)
		}
	}
}
