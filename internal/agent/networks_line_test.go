package agent

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
)

// breaking are plugins, in memory, whose ADD waits. That of the plugin "bad" fails.
type breaking struct{ halting }

func (p *breaking) ExecPlugin(ctx context.Context, path string, in []byte, environ []string) ([]byte, error) {
	out, err := p.halting.ExecPlugin(ctx, path, in, environ)
	if slices.Contains(environ, "CNI_COMMAND=ADD") && filepath.Base(path) == "bad" {
		return nil, errors.New("it fails")
	}
	return out, err
}

// startBreaking starts a rig whose other plugins are breaking, and returns an ADD of a pod whose networks are made by first and by two further
// plugins.
func startBreaking(t *testing.T, first string) (*networked, *breaking, api.AddRequest) {
	t.Helper()
	n := startNetworked(t)
	plugins := &breaking{halting{begun: make(chan struct{}, 3), goOn: make(chan struct{})}}
	t.Cleanup(func() { close(plugins.goOn) }) // a test that fails leaves nobody waiting
	n.node.Delegates.Exec = plugins
	n.define("second", `{"cniVersion":"1.1.0","type":"second"}`)
	n.define("third", `{"cniVersion":"1.1.0","type":"third"}`)
	n.pod("web", "u1", "second,third")
	req := request("c1", nettest.Pod(t), `"delegates":[{"cniVersion":"1.1.0","name":"others","type":"`+first+`"}]`)
	req.Args = podRequest("web", "u1", "c1", nettest.Pod(t)).Args
	return n, plugins, req
}

// While the plugin of a pod's first network runs, the ledger has all networks of the pod; their plugins are executed one after the other.
func TestNetworksInLine(t *testing.T) {
	n, plugins, req := startBreaking(t, "first")
	added := make(chan error, 1)
	go func() {
		_, err := n.tryAdd(req)
		added <- err
	}()
	<-plugins.begun
	nettest.Eventually(t, "all networks in the ledger", func() bool { return len(n.index.All()) == 3 })
	for range 2 {
		if len(plugins.begun) > 0 {
			t.Error("two plugins run at once")
		}
		plugins.goOn <- struct{}{}
		<-plugins.begun
	}
	plugins.goOn <- struct{}{}
	must(t, <-added)
	if want := []string{"first ADD c1 eth0", "second ADD c1 net1", "third ADD c1 net2"}; !slices.Equal(plugins.runs, want) {
		t.Errorf("executed %q, want %q", plugins.runs, want)
	}
	n.says("web", "others=/0", "default/second=/0", "default/third=/0")
	n.del("c1", true)
	if want := []string{"third DEL c1 net2", "second DEL c1 net1", "first DEL c1 eth0"}; !slices.Equal(plugins.runs[3:], want) {
		t.Errorf("executed %q, want %q", plugins.runs[3:], want)
	}
}

// If the plugin of a pod's first network fails, those of the others are not executed, neither for ADD nor for DEL, and the error is the first one's.
func TestNetworksInLineFail(t *testing.T) {
	n, plugins, req := startBreaking(t, "bad")
	added := make(chan error, 1)
	go func() {
		_, err := n.tryAdd(req)
		added <- err
	}()
	<-plugins.begun
	nettest.Eventually(t, "all networks in the ledger", func() bool { return len(n.index.All()) == 3 })
	plugins.goOn <- struct{}{}
	wantError(t, <-added, 999, "plugin bad: it fails")
	nettest.Eventually(t, "all to be gone", func() bool { return len(n.index.All()) == 0 })
	if want := []string{"bad ADD c1 eth0", "bad DEL c1 eth0"}; !slices.Equal(plugins.runs, want) {
		t.Errorf("executed %q, want %q", plugins.runs, want)
	}
}
