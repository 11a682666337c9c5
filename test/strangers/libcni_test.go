package strangers

import (
	"errors"
	"slices"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// runtime is a container runtime as far as libcni makes one.
type runtime struct {
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

func newRuntime(t *testing.T, n *node, specVersion, keys string) *runtime {
	t.Helper()
	list, err := libcni.NetworkConfFromBytes([]byte(n.conflist(specVersion, keys)))
	must(t, err)
	return &runtime{libcni.NewCNIConfigWithCacheDir([]string{n.bin}, t.TempDir(), nil), list}
}

// add attaches a pod and returns the result in the version of the library.
func (r *runtime) add(t *testing.T, rt *libcni.RuntimeConf) *current.Result {
	t.Helper()
	got, err := r.cni.AddNetworkList(t.Context(), r.list, rt)
	if err != nil {
		t.Fatalf("ADD: %v", err)
	}
	if got.Version() != r.list.CNIVersion {
		t.Errorf("the result has version %s, the configuration %s", got.Version(), r.list.CNIVersion)
	}
	result, err := current.NewResultFromResult(got)
	must(t, err)
	return result
}

func (r *runtime) del(t *testing.T, rt *libcni.RuntimeConf) {
	t.Helper()
	if err := r.cni.DelNetworkList(t.Context(), r.list, rt); err != nil {
		t.Fatalf("DEL: %v", err)
	}
}

// of is the runtime configuration of a pod's eth0.
func of(container string, pod *ns.Netns) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: container, NetNS: pod.Ref().Path, IfName: "eth0"}
}

// has reports whether a version has verbs that came with the version since.
func has(t *testing.T, specVersion, since string) bool {
	t.Helper()
	ok, err := version.GreaterThanOrEqualTo(specVersion, since)
	must(t, err)
	return ok
}

// aws, from source: no CHECK, no STATUS.
func TestLibcniEveryVersion(t *testing.T) {
	n := newNode(t)
	pod := nettest.Pod(t)
	n.empty = nettest.Snapshot(t, nil)
	info, err := newRuntime(t, n, "1.1.0", "").cni.GetVersionInfo(t.Context(), "berth-cni")
	if err != nil {
		t.Fatalf("VERSION: %v", err)
	}
	for _, v := range version.All.SupportedVersions() {
		if !slices.Contains(info.SupportedVersions(), v) {
			t.Errorf("berth-cni does not support %s, which libcni speaks", v)
			continue
		}
		t.Run(v, func(t *testing.T) {
			r, rt := newRuntime(t, n, v, ""), of("every-"+v, pod)
			if has(t, v, "1.1.0") {
				if err := r.cni.GetStatusNetworkList(t.Context(), r.list); err != nil {
					t.Errorf("STATUS: %v", err)
				}
			}
			result := r.add(t, rt)
			if len(result.IPs) != 2 {
				t.Fatalf("the result has the addresses %v, not one of each family", result.IPs)
			}
			for _, ip := range result.IPs {
				reaches(t, ip.Address.String())
			}
			if has(t, v, "0.4.0") {
				if err := r.cni.CheckNetworkList(t.Context(), r.list, rt); err != nil {
					t.Errorf("CHECK: %v", err)
				}
			}
			r.del(t, rt)
			r.del(t, rt)
			n.agent.NothingLeft(t, n.empty)
		})
	}
}

// A runtime has lost its cache, and the pod its network namespace. DEL succeeds, and leaves nothing.
func TestLibcniDelKnowsNothing(t *testing.T) {
	n := newNode(t)
	pod := nettest.Pod(t)
	rt := of("amnesia", pod)
	newRuntime(t, n, "1.1.0", "").add(t, rt)
	nettest.Delete(t, pod)
	rt.NetNS = ""
	newRuntime(t, n, "1.1.0", "").del(t, rt)
	n.agent.NothingLeft(t, n.empty)
}

// A runtime that has lost its cache collects garbage: libcni then has nothing
// to delete by itself, and the plugin does it (aws, from source; cilium,
// general; plugins, general: no GC).
func TestLibcniGC(t *testing.T) {
	n := newNode(t)
	r := newRuntime(t, n, "1.1.0", "")
	kept, lost := nettest.Pod(t), nettest.Pod(t)
	result := r.add(t, of("kept", kept))
	gone := r.add(t, of("lost", lost))
	r.cni = newRuntime(t, n, "1.1.0", "").cni // the cache of r is lost, too
	gc := func(valid ...types.GCAttachment) {
		t.Helper()
		if err := r.cni.GCNetworkList(t.Context(), r.list, &libcni.GCArgs{ValidAttachments: valid}); err != nil {
			t.Fatalf("GC: %v", err)
		}
	}

	gc(types.GCAttachment{ContainerID: "kept", IfName: "eth0"})
	for i, ip := range result.IPs {
		reaches(t, ip.Address.String())
		nettest.NoPing(t, nil, addrOf(gone.IPs[i]))
	}
	n.agent.Audit(t)

	gc() // the list is null
	nettest.Delete(t, kept)
	nettest.Delete(t, lost)
	n.agent.NothingLeft(t, n.empty)
}

// The capabilities ips and mac, as a runtime passes them on.
func TestLibcniCapabilities(t *testing.T) {
	n := newNode(t)
	pod := nettest.Pod(t)
	r := newRuntime(t, n, "1.1.0", `, "capabilities": {"ips": true, "mac": true}`)
	rt := of("asking", pod)
	rt.CapabilityArgs = map[string]any{"ips": []string{"10.88.0.77", "fd88::77"}, "mac": "02:00:5e:00:53:01"}
	result := r.add(t, rt)
	var got []string
	for _, ip := range result.IPs {
		got = append(got, addrOf(ip).String())
	}
	if want := []string{"10.88.0.77", "fd88::77"}; !slices.Equal(got, want) {
		t.Errorf("asked for the addresses %v, got %v", want, got)
	}
	if !slices.ContainsFunc(result.Interfaces, func(i *current.Interface) bool {
		return i.Sandbox != "" && i.Mac == "02:00:5e:00:53:01"
	}) {
		t.Errorf("no interface in the pod has the requested MAC: %v", result.Interfaces)
	}
	reaches(t, got...)

	// Another pod cannot have the same address.
	other := of("asking-too", nettest.Pod(t))
	other.CapabilityArgs = rt.CapabilityArgs
	_, err := r.cni.AddNetworkList(t.Context(), r.list, other)
	if cni := new(types.Error); !errors.As(err, &cni) {
		t.Errorf("ADD with an address in use answers %v", err)
	}
	r.del(t, other) // as a runtime does after a failed ADD
	r.del(t, rt)
	n.agent.Audit(t)
}

// With "wait", the interface is gone when DEL answers.
func TestLibcniWait(t *testing.T) {
	n := newNode(t)
	pod := nettest.Pod(t)
	n.empty = nettest.Snapshot(t, nil)
	r, rt := newRuntime(t, n, "1.1.0", `, "wait": true`), of("waiting", pod)
	for range 5 {
		r.add(t, rt)
		r.del(t, rt)
		if diff := n.empty.Only("link", "route").Diff(nettest.Snapshot(t, nil).Only("link", "route")); diff != "" {
			t.Fatalf("left after DEL has answered:\n%s", diff)
		}
	}
	n.agent.NothingLeft(t, n.empty)
}
