package agent

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
)

// otherPlugins are plugins, in memory, of networks that have no interface in the pod.
type otherPlugins struct{ formerPlugins }

func (p *otherPlugins) ExecPlugin(ctx context.Context, path string, in []byte, environ []string) ([]byte, error) {
	if _, err := p.formerPlugins.ExecPlugin(ctx, path, in, environ); err != nil {
		return nil, err
	}
	if slices.Contains(environ, "CNI_COMMAND=GC") && !strings.Contains(string(in), `"cni.dev/valid-attachments":[{"containerID":"c2","ifname":"eth0"}]`) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.runs = append(p.runs, "with "+string(in))
	}
	return []byte(`{"cniVersion":"1.1.0"}`), nil
}

// After the loss of the ledger nobody knows which networks of other plugins the pods have: GC asks these plugins for nothing while a pod is
// there that the ledger lacked, and while the runtime has a pod that the ledger lacks.
func TestGCOfOthersAfterLoss(t *testing.T) {
	r := start(t)
	plugins := &otherPlugins{}
	r.node.Delegates.Exec = plugins
	ran := func(want ...string) {
		t.Helper()
		if !slices.Equal(plugins.runs, want) {
			t.Errorf("executed %q, want %q", plugins.runs, want)
		}
		plugins.runs = nil
	}
	gc := func(containers ...string) {
		t.Helper()
		req := api.GCRequest{Network: "net"}
		for _, c := range containers {
			req.Valid = append(req.Valid, api.GCValid{ContainerID: c, Ifname: "eth0"})
		}
		_, err := r.GC(t.Context(), req, now())
		must(t, err)
	}
	others := `"delegates":[{"cniVersion":"1.1.0","name":"others","type":"p"}]`
	r.add(request("c1", nettest.Pod(t)))
	r.lose(false)
	_, err := r.rebuild()
	must(t, err)
	r.bringUp()
	r.node.Delegates.Exec = plugins
	r.add(request("c2", nettest.Pod(t), others))
	ran("p ADD c2 eth0")
	gc("c1", "c2")
	ran()
	if _, err := r.GC(t.Context(), api.GCRequest{Network: "net", Valid: []api.GCValid{{ContainerID: "c2", Ifname: "eth0"}}, DryRun: true}, now()); err != nil {
		t.Error(err)
	}
	ran()
	gc("c2", "c3") // c1 goes by it
	nettest.Eventually(t, "the pod that was found to be gone", func() bool { return len(r.List(key("c1"))) == 0 })
	gc("c2", "c3")
	ran()
	gc("c2")
	ran("p GC  ")
	_, _, err = r.Delete(t.Context(), key("c2"), true, now())
	must(t, err)
}
