package networks

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nad"
	"github.com/berth-net/berth/internal/nettest"
)

// BenchmarkThree attaches and detaches a pod with three networks by ptp, bridge and macvlan: by Multus, by Berth, and by the plugins alone,
// which the benchmark executes one after the other. Each iteration does it by all three in turns. The figures are medians in
// milliseconds, and Berth's and Multus's ratio to the plugins alone.
//
//	go test -run - -bench Three -benchtime 30x ./test/networks
func BenchmarkThree(bench *testing.B) {
	b := newBoth(bench, false)
	configs := []string{
		`{"cniVersion":"1.0.0","name":"one","type":"ptp",` + b.local("10.1.0.0/24") + `}`,
		`{"cniVersion":"1.0.0","name":"two","type":"bridge","bridge":"br9",` + b.local("10.2.0.0/24") + `}`,
		`{"cniVersion":"1.0.0","name":"three","type":"macvlan","master":"br8",` + b.local("10.3.0.0/24") + `}`,
	}
	b.define("two", configs[1])
	b.define("three", configs[2])
	b.pod("default", "web", kubetest.Object{nad.KeyNetworks: "two,three"})
	took := map[string][]time.Duration{}
	for i := range bench.N {
		for _, by := range []string{"multus", "berth-cni", "plugins"} {
			at := nettest.Pod(bench)
			container := fmt.Sprintf("c-%d-%s", i, by)
			for _, verb := range []string{"ADD", "DEL"} {
				begin := time.Now()
				if by == "plugins" {
					b.alone(verb, container, at.Ref().Path, configs)
				} else {
					_, err := b.exec(request{plugin: by, verb: verb, container: container, namespace: "default", name: "web", netns: at.Ref().Path, version: "1.0.0", keys: `,"delegates":[` + configs[0] + `]`})
					must(bench, err)
				}
				took[verb+" "+by] = append(took[verb+" "+by], time.Since(begin))
			}
			nettest.Eventually(bench, "the pod to be gone", func() bool { return len(b.files()) == 0 })
			nettest.Delete(bench, at)
		}
	}
	middle := func(what string) float64 { // in milliseconds
		slices.Sort(took[what])
		return float64(took[what][len(took[what])/2]) / float64(time.Millisecond)
	}
	for _, verb := range []string{"ADD", "DEL"} {
		alone := middle(verb + " plugins")
		bench.ReportMetric(alone, verb+"-plugins-ms")
		for _, by := range []string{"multus", "berth-cni"} {
			bench.ReportMetric(middle(verb+" "+by), verb+"-"+by+"-ms")
			bench.ReportMetric(middle(verb+" "+by)/alone, verb+"-"+by+"-ratio")
		}
	}
}

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
