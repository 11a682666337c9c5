package metrics

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// operatorExposed starts the real operator at an API server in memory, with a pool that serves a node and one that is too small for it,
// and returns what the operator then exposes.
func operatorExposed(t *testing.T) exposition {
	t.Helper()
	s := kubetest.Serve(t)
	for name, cidr := range map[string]string{"wide": "10.64.0.0/24", "narrow": "10.65.0.0/31"} {
		s.Put("ippools", kubetest.Object{"metadata": kubetest.Object{"name": name}, "spec": kubetest.Object{"ipv4": kubetest.Object{"cidrs": []string{cidr}, "blockSize": 31}}})
	}
	s.Put("nodes", kubetest.Object{"metadata": kubetest.Object{"name": "n1", "labels": kubetest.Object{"kubernetes.io/os": "linux"}}})
	port := freePort(t)
	log := filepath.Join(t.TempDir(), "log")
	words, err := os.Create(log)
	must(t, err)
	defer words.Close()
	cmd := exec.Command(filepath.Join(programs.Own(t), "berth-operator"), "--kubeconfig="+s.Kubeconfig(t), "--leader-elect=false", "--metrics="+port, "--health=0")
	cmd.Stderr = words
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if raw, err := os.ReadFile(log); err == nil && t.Failed() {
			t.Logf("the operator's log:\n%s", raw)
		}
	})
	nettest.Eventually(t, "the operator to make the node's NodeNetwork", func() bool { return s.Get("nodenetworks", "/n1") != nil })
	s.Edit("nodenetworks", "/n1", func(o kubetest.Object) {
		o["status"] = kubetest.Object{"addresses": []string{"192.0.2.1"}, "requests": []any{
			kubetest.Object{"pool": "wide", "addresses": 3}, kubetest.Object{"pool": "narrow", "addresses": 3},
		}}
	})
	var text string
	nettest.Eventually(t, "the operator to give blocks, and the node to wait for more", func() bool {
		text = scrape(port)
		for _, line := range []string{
			`berth_operator_leading 1`, `berth_operator_pool_blocks{pool="wide"} 128`, `berth_operator_pool_blocks_given{pool="wide"} 2`,
			`berth_operator_pool_nodes{pool="narrow"} 1`, `berth_operator_pool_ready{pool="narrow"} 1`,
			`berth_operator_pool_exhausted{pool="wide"} 0`, `berth_operator_pool_exhausted{pool="narrow"} 1`,
			`berth_operator_pool_waiting_nodes{pool="wide"} 0`, `berth_operator_pool_waiting_nodes{pool="narrow"} 1`, `berth_operator_pool_wait_seconds{pool="wide"} 0`,
		} {
			if !strings.Contains("\n"+text, "\n"+line+"\n") {
				return false
			}
		}
		return !strings.Contains(text, `berth_operator_pool_wait_seconds{pool="narrow"} 0`+"\n")
	})
	return read(t, text)
}

// freePort returns an address at which nobody listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, l.Close())
	return l.Addr().String()
}

// scrape returns what is exposed at an address; "": nothing yet.
func scrape(address string) string {
	res, err := http.Get(fmt.Sprintf("http://%s/metrics", address))
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return ""
	}
	return string(raw)
}
