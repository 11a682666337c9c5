package networks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// limited has host ports and limits.
var limited = asks{"portMappings": port8080["portMappings"], "bandwidth": map[string]any{
	"ingressRate": 80_000_000, "ingressBurst": 8_000_000, "egressRate": 40_000_000, "egressBurst": 4_000_000,
}}

// reaches fails unless a client reaches a pod by its host port, by both families.
func reaches(t testing.TB, from *ns.Netns) {
	t.Helper()
	for _, addr := range nodeAddrs {
		if _, err := nettest.Talk(from, "tcp", netip.AddrPortFrom(netip.MustParseAddr(addr), 8080), 5*time.Second); err != nil {
			t.Error(err)
		}
	}
}

// attached are the IDs of the agent's attachments.
func (n *node) attached() (ids []string) {
	n.t.Helper()
	all, err := n.API.List(context.Background(), api.Filter{})
	must(n.t, err)
	for _, a := range all {
		ids = append(ids, a.ID)
	}
	return ids
}

// A runtime repeats berth-cni's ADD, and restarts of the agent come in between: the attachment stays one and the same, with its ports.
func TestChainedAddRepeated(t *testing.T) {
	eachAhead(t, ahead[:2], func(n *node, from *ns.Netns, head string) {
		t := n.t
		c, pod := newChain(n, n.dual(head, 2)), nettest.Pod(t)
		r := c.add("c1", pod, limited)
		first := n.attached()
		serve(t, pod)
		reaches(t, from)
		for _, crash := range []bool{false, true} {
			if crash {
				n.Crash()
				n.Again()
			}
			again, err := c.repeat("c1", pod, limited, r)
			must(t, err)
			if got, want := text(t, again), text(t, r); got != want {
				t.Errorf("the repeated ADD says %s, want %s", got, want)
			}
			if got := n.attached(); !reflect.DeepEqual(got, first) {
				t.Errorf("the attachments are %v, want %v", got, first)
			}
			must(t, c.check("c1", pod, limited))
			reaches(t, from)
		}
		c.del("c1", pod, limited)
	})
}

// repeat executes the ADD of berth-cni alone, with the result of the plugin ahead.
func (c *chain) repeat(container string, pod *ns.Netns, caps asks, prev *types100.Result) (*types100.Result, error) {
	c.t.Helper()
	plugin := c.list.Plugins[len(c.list.Plugins)-1]
	var conf map[string]any
	must(c.t, json.Unmarshal(plugin.Bytes, &conf))
	conf["cniVersion"], conf["name"], conf["prevResult"], conf["runtimeConfig"] = c.list.CNIVersion, c.list.Name, prev, caps
	raw, err := json.Marshal(conf)
	must(c.t, err)
	alone, err := libcni.NetworkPluginConfFromBytes(raw)
	must(c.t, err)
	r, err := c.cni.AddNetwork(context.Background(), alone, c.runtime(container, pod, nil))
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(r)
}

// text is a result as JSON.
func text(t testing.TB, r *types100.Result) string {
	t.Helper()
	raw, err := json.Marshal(r)
	must(t, err)
	return string(raw)
}

// The plugin ahead gets its DEL first, and takes the link away: berth-cni's DEL succeeds, and the next pod with the addresses has the same
// port of its own at once.
func TestChainedOtherDelFirst(t *testing.T) {
	eachAhead(t, ahead[:2], func(n *node, from *ns.Netns, head string) {
		t := n.t
		c := newChain(n, n.dual(head, 2))
		for i := range 2 {
			container, pod := fmt.Sprintf("c%d", i), nettest.Pod(t)
			c.add(container, pod, limited)
			nettest.Run(t, nil, "ip neigh flush all") // the former pod's MAC
			serve(t, pod)
			reaches(t, from)
			c.alone(n.dual(head, 2)).del(container, pod, limited)
			if n.mapped() == 0 {
				t.Error("without berth-cni's DEL, no port is mapped, and the test shows nothing")
			}
			c.del(container, pod, limited)
			nettest.Eventually(t, "no mapping", func() bool { return n.mapped() == 0 })
		}
	})
}

// A runtime has the leftovers collected, and libcni knows nothing of a pod any more: GC releases what Berth has added to its interface, and
// leaves that of a valid one alone.
func TestChainedGC(t *testing.T) {
	eachAhead(t, ahead[:2], func(n *node, from *ns.Netns, head string) {
		t := n.t
		c, other := newChain(n, n.dual(head, 2)), newChain(n, n.dual(head, 9))
		pod, lost := nettest.Pod(t), nettest.Pod(t)
		c.add("c1", pod, limited)
		serve(t, pod)
		port9090 := asks{"portMappings": []any{map[string]any{"hostPort": 9090, "containerPort": 80, "protocol": "tcp"}}}
		other.add("c9", lost, port9090)
		before := n.mapped()
		forgetful := libcni.NewCNIConfigWithCacheDir([]string{n.bin, n.plugins}, t.TempDir(), nil)
		must(t, forgetful.GCNetworkList(t.Context(), c.list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}}}))
		nettest.Eventually(t, "the lost pod's ports to go", func() bool { return n.mapped() == before-2 })
		if got := n.attached(); len(got) != 1 {
			t.Errorf("the attachments are %v, want one", got)
		}
		reaches(t, from)
		must(t, c.check("c1", pod, limited))
		c.del("c1", pod, limited)
		other.del("c9", lost, port9090)
	})
}

// A reboot takes the pods and their links. The next agent releases what its ledger has of them, without any DEL.
func TestChainedRebooted(t *testing.T) {
	eachAhead(t, ahead[:2], func(n *node, _ *ns.Netns, head string) {
		t := n.t
		c, pod := newChain(n, n.dual(head, 2)), nettest.Pod(t)
		c.add("c1", pod, limited)
		n.Crash()
		nettest.AnotherBoot(t)
		nettest.Delete(t, pod)
		must(t, os.RemoveAll(root.Dir(n.Root).Run()))
		n.Again()
		nettest.Eventually(t, "no attachment", func() bool { return len(n.attached()) == 0 })
		if mapped := n.mapped(); mapped != 0 {
			t.Errorf("%d ports are mapped", mapped)
		}
		must(t, c.cni.DelNetworkList(t.Context(), c.list, &libcni.RuntimeConf{ContainerID: "c1", IfName: "eth0"}))
	})
}
