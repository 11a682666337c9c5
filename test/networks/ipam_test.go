package networks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// lent are the keys of a network of Berth's own whose addresses an IPAM plugin gives.
func (n *node) lent(ipam string, more ...string) []string {
	return append(more, fmt.Sprintf(`"binDir":%q`, n.plugins), ipam)
}

// both is the ipam of a network with host-local, in both families.
func (n *node) both() string {
	return fmt.Sprintf(`"ipam":{"type":"host-local","ranges":[[{"subnet":"10.5.0.0/29"}],[{"subnet":"fd00:5::/64"}]],"routes":[{"dst":"192.0.2.0/24"}],"dataDir":%q}`, n.disk)
}

// withStatic is a node with the IPAM plugins host-local, static and flaky.
func withStatic(t testing.TB) *node {
	n := newNodeWith(t, "pools: [{name: default, cidrs: [10.88.0.0/24, fd00:88::/64]}]\n", "host-local", "static")
	must(t, os.WriteFile(filepath.Join(n.plugins, "flaky"), fmt.Appendf(nil, flaky, n.disk), 0o700))
	return n
}

func static(addresses ...string) string {
	var all []string
	for _, a := range addresses {
		all = append(all, fmt.Sprintf(`{"address":%q}`, a))
	}
	return `"ipam":{"type":"static","addresses":[` + strings.Join(all, ",") + `],"dns":{"nameservers":["192.0.2.53"],"search":["lent.test"]}}`
}

// del deletes a pod, and waits until nothing of it is left.
func (n *node) del(container string, pod *ns.Netns, keys []string) {
	n.t.Helper()
	_, err := n.Exec("DEL", container, pod.Ref().Path, keys...)
	must(n.t, err)
	n.nothingLeft()
}

// host-local gives a pod its addresses, in both families: the pod is reached by them, CHECK asks the plugin, and DEL gives them back, so that the
// next pods have all eight addresses of the range at once, without a rest.
func TestIPAM(t *testing.T) {
	nettest.Need(t)
	for _, own := range []string{"198.51.100.1/32", "2001:db8::1/128"} { // which the pod answers
		nettest.Run(t, nil, "ip addr add "+own+" dev lo")
		t.Cleanup(func() { nettest.Run(t, nil, "ip addr del "+own+" dev lo") })
	}
	n := withStatic(t)
	keys := n.lent(n.both(), `"mtu":1400`, `"runtimeConfig":{"portMappings":[{"hostPort":18080,"containerPort":80}]}`)
	for range 3 {
		pod := nettest.Pod(t)
		r := n.add("c1", pod, keys...)
		var got []string
		for _, ip := range r.IPs {
			got = append(got, ip.Address.String())
		}
		if len(got) != 2 || !strings.HasPrefix(got[0], "10.5.0.") || !strings.HasSuffix(got[0], "/32") || !strings.HasSuffix(got[1], "/128") {
			t.Fatalf("the pod has %v", got)
		}
		all, err := n.API.List(t.Context(), api.Filter{})
		must(t, err)
		if kept := n.files(); len(kept) != 2 || len(all) != 1 || len(all[0].HostPorts) != 2 || len(all[0].Addresses) != 2 || all[0].Pool != "" {
			t.Errorf("host-local has %v, and the agent %+v", kept, all)
		}
		for _, a := range got {
			nettest.Ping(t, nil, netip.MustParsePrefix(a).Addr())
		}
		prev, err := json.Marshal(r)
		must(t, err)
		check := append(slices.Clone(keys), `"prevResult":`+string(prev))
		_, err = n.Exec("CHECK", "c1", pod.Ref().Path, check...)
		must(t, err)
		again := n.add("c1", pod, keys...)
		if !reflect.DeepEqual(again.IPs, r.IPs) || len(n.files()) != 2 {
			t.Errorf("a repeated ADD has %v, and host-local %v", again.IPs, n.files())
		}
		for _, f := range n.files() { // somebody takes the reservation away
			must(t, os.Remove(filepath.Join(n.disk, f)))
		}
		_, err = n.Exec("CHECK", "c1", pod.Ref().Path, check...)
		programs.WantError(t, err, 103, "host-local")
		n.del("c1", pod, keys)
	}
}

// A network beside the first one has addresses of an IPAM plugin, too, and requested addresses and CNI_ARGS reach the plugin.
func TestIPAMBeside(t *testing.T) {
	n := withStatic(t)
	keys := n.keys(
		`{"cniVersion":"1.0.0","name":"one","type":"berth-cni",`+static("10.6.0.2/24", "fd00:6::2/64")+`}`,
		`{"cniVersion":"1.0.0","name":"two","type":"berth-cni",`+n.both()+`}`,
	)
	pod := nettest.Pod(t)
	r := n.add("c1", pod, keys...)
	if len(r.IPs) != 2 || r.IPs[0].Address.IP.String() != "10.6.0.2" || fmt.Sprint(r.DNS.Nameservers, r.DNS.Search) != "[192.0.2.53] [lent.test]" {
		t.Errorf("the first network has %v, and DNS %v", r.IPs, r.DNS)
	}
	if got := n.links(pod); !slices.Equal(got, []string{"eth0", "net1"}) || len(n.files()) != 2 {
		t.Errorf("the pod has %v, and host-local %v", got, n.files())
	}
	n.del("c1", pod, keys)
	asks := n.lent(`"ipam":{"type":"static"}`, `"capabilities":{"ips":true}`, `"runtimeConfig":{"ips":["10.6.0.9/24"]}`)
	if r = n.add("c2", pod, asks...); len(r.IPs) != 1 || r.IPs[0].Address.IP.String() != "10.6.0.9" {
		t.Errorf("a pod that asks for 10.6.0.9 has %v", r.IPs)
	}
	n.del("c2", pod, asks)
}

// An address of an IPAM plugin that a pool, another attachment or the node itself has is refused with the names of both, and nothing stays; so are
// results that a pod cannot have.
func TestIPAMConflicts(t *testing.T) {
	n := withStatic(t)
	nettest.Run(t, nil, "ip addr add 10.6.0.1/32 dev br8")
	defer nettest.Run(t, nil, "ip addr del 10.6.0.1/32 dev br8")
	n.empty = n.state()
	first := nettest.Pod(t)
	keys := n.lent(static("10.6.0.2/24"))
	n.add("first", first, keys...)
	all, err := n.API.List(t.Context(), api.Filter{})
	must(t, err)
	for what, c := range map[string]struct {
		keys []string
		code uint
		says string
	}{
		"another attachment's": {keys, 101, all[0].ID},
		"a pool's":             {n.lent(static("10.88.0.9/24")), 101, "static gives 10.88.0.9, which is an address of pool default"},
		"the node's":           {n.lent(static("10.6.0.1/24")), 101, "static gives 10.6.0.1, which somebody else on this node has"},
		"two of a family":      {n.lent(static("10.6.0.3/24", "10.6.0.4/24")), 7, "at most one of each family"},
		"none":                 {n.lent(`"ipam":{"type":"static"}`), 7, "gives no address"},
		"no address of a pod":  {n.lent(static("127.0.0.3/8")), 7, "an address that a pod can have"},
		"too small an MTU":     {n.lent(static("fd00:6::3/64"), `"mtu":1000`), 7, "IPAM plugin static has IPv6"},
		"no such plugin":       {n.lent(`"ipam":{"type":"nowhere"}`), 5, "nowhere"},
	} {
		pod := nettest.Pod(t)
		_, err := n.Exec("ADD", "second", pod.Ref().Path, c.keys...)
		programs.WantError(t, err, c.code, c.says)
		nettest.Eventually(t, what+" to be gone", func() bool { l, err := n.API.List(t.Context(), api.Filter{}); return err == nil && len(l) == 1 })
		if got := n.links(pod); len(got) > 0 {
			t.Errorf("%s: the pod has %v", what, got)
		}
	}
	n.del("first", first, keys)
	n.add("second", first, keys...) // at once: the address is the plugin's, and does not rest
	n.del("second", first, keys)
}

// However an IPAM plugin fails at ADD, the ADD fails with a number, and nothing stays. However it fails at DEL, DEL succeeds and the link goes;
// the address is owed until the plugin works again.
func TestIPAMFails(t *testing.T) {
	n := withStatic(t)
	keys := n.lent(`"ipam":{"type":"flaky"}`)
	for how, want := range map[string]struct {
		code uint
		says string
	}{
		"fail": {123, "told to fail"}, "later": {123, "told to fail"}, "crash": {999, "signal"}, "garbage": {999, "flaky"}, "much": {999, "10485760 bytes"},
	} {
		n.tell("ADD", how)
		pod := nettest.Pod(t)
		_, err := n.Exec("ADD", "c-"+how, pod.Ref().Path, keys...)
		programs.WantError(t, err, want.code, want.says)
		n.nothingLeft()
		n.tell("ADD", "")
	}
	for _, how := range []string{"fail", "crash", "hang"} {
		pod := nettest.Pod(t)
		n.add("c-"+how, pod, keys...)
		n.tell("DEL", how)
		_, err := n.Exec("DEL", "c-"+how, pod.Ref().Path, keys...)
		must(t, err)
		nettest.Eventually(t, "the link to be gone", func() bool { return len(n.links(pod)) == 0 })
		if got := n.files(); len(got) != 1 {
			t.Errorf("%s: the plugin has %v", how, got)
		}
		n.tell("DEL", "")
		_, err = n.Berth(t.Context(), "owed", "retry")
		must(t, err)
		n.nothingLeft()
	}
	n.stopRunner()
	_, err := n.Exec("ADD", "c2", nettest.Pod(t).Ref().Path, keys...)
	programs.WantError(t, err, 11, "berth-runner")
	n.nothingLeft()
}

// An agent is killed while an IPAM plugin works. The next agent completes the attachment when the runtime repeats ADD, and gives everything
// back when it says DEL, or leaves the pod out of GC's list.
func TestIPAMKilledInAdd(t *testing.T) {
	n := withStatic(t)
	keys := n.lent(`"ipam":{"type":"flaky"}`)
	for _, how := range []string{"DEL", "GC", "ADD"} {
		pod := nettest.Pod(t)
		n.killInAdd(pod, keys)
		var err error
		switch how {
		case "GC":
			_, err = n.Exec("GC", "", "", append(slices.Clone(keys), `"cni.dev/valid-attachments":[]`)...)
		case "ADD":
			n.add("c1", pod, keys...)
			if got := n.links(pod); len(got) != 1 {
				t.Errorf("after a repeated ADD the pod has %v", got)
			}
			fallthrough
		case "DEL":
			_, err = n.Exec("DEL", "c1", pod.Ref().Path, keys...)
		}
		must(t, err)
		n.nothingLeft()
	}
}

// killInAdd kills the agent while the plugin flaky works for a pod's ADD, and starts another one.
func (n *node) killInAdd(pod *ns.Netns, keys []string) {
	n.t.Helper()
	n.tell("ADD", "hang")
	done := make(chan error)
	go func() { _, err := n.Exec("ADD", "c1", pod.Ref().Path, keys...); done <- err }()
	nettest.Eventually(n.t, "the ADD to be begun", func() bool {
		all, err := n.API.List(context.Background(), api.Filter{})
		return err == nil && len(all) == 1
	})
	n.Crash()
	n.tell("ADD", "")
	n.Again()
	if err := <-done; err == nil {
		n.t.Log("the plugin has repeated its request") // and the pod is attached
	}
}

// A pod is deleted while no agent runs; and a reboot takes pods, but not host-local's files. Both times the next agent has host-local give back
// what it has kept.
func TestIPAMAway(t *testing.T) {
	n := withStatic(t)
	keys := n.lent(n.both())
	pod := nettest.Pod(t)
	n.add("c1", pod, keys...)
	n.Crash()
	_, err := n.Exec("DEL", "c1", pod.Ref().Path, keys...)
	must(t, err)
	nettest.Delete(t, pod)
	n.Again()
	n.nothingLeft()
	pod = nettest.Pod(t)
	n.add("c2", pod, keys...)
	n.rebooted(pod)
	if got := n.files(); len(got) != 2 {
		t.Errorf("host-local has %v", got)
	}
	n.Again()
	n.startRunner()
	_, err = n.Berth(t.Context(), "owed", "retry")
	must(t, err)
	n.nothingLeft()
}
