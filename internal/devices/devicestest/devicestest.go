// Package devicestest is a kubelet in memory, for tests: it says which devices pods have by gRPC's own library and the kubelet's own types.
// It may lack Get, be asked too often, and hang.
package devicestest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Kubelet is a kubelet on a socket.
type Kubelet struct {
	podresources.UnimplementedPodResourcesListerServer

	mu          sync.Mutex
	pods        []*podresources.PodResources
	noGet       error
	hangs       bool
	refusals    int
	gets, lists int
}

// Serve starts a kubelet on a socket, until the test ends.
func Serve(t testing.TB, socket string) *Kubelet {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	k := new(Kubelet)
	s := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(s, k)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return k
}

// Put adds a pod.
func (k *Kubelet) Put(namespace, name string, containers ...*podresources.ContainerResources) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = append(k.pods, &podresources.PodResources{Namespace: namespace, Name: name, Containers: containers})
}

// Container returns what a container has: devices' IDs of a resource, with their place in the machine, as device plugins tell.
func Container(name, resource string, ids ...string) *podresources.ContainerResources {
	c := &podresources.ContainerResources{
		Name: name, CpuIds: []int64{0, 3}, Memory: []*podresources.ContainerMemory{{MemoryType: "memory", Size: 1 << 30}},
	}
	for _, id := range ids { // the kubelet has an entry for each device
		c.Devices = append(c.Devices, &podresources.ContainerDevices{
			ResourceName: resource, DeviceIds: []string{id},
			Topology: &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: 1}}},
		})
	}
	return c
}

// SwitchOffGet has the kubelet answer each Get with an error.
func (k *Kubelet) SwitchOffGet(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.noGet = err
}

// Hang has the kubelet answer nobody; Refuse has it answer n times that it was asked too often.
func (k *Kubelet) Hang() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hangs = true
}

func (k *Kubelet) Refuse(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refusals = n
}

// Asked returns how often Get and List were called, refusals left out.
func (k *Kubelet) Asked() (gets, lists int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.gets, k.lists
}

// ready waits if the kubelet hangs, and refuses if it has to.
func (k *Kubelet) ready(ctx context.Context, asked *int) error {
	k.mu.Lock()
	hangs, refuses := k.hangs, k.refusals > 0
	if refuses {
		k.refusals--
	} else {
		*asked++
	}
	k.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if refuses {
		return status.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	return nil
}

// Get implements PodResourcesLister.
func (k *Kubelet) Get(ctx context.Context, r *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	if err := k.ready(ctx, &k.gets); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.noGet != nil {
		return nil, k.noGet
	}
	for _, p := range k.pods {
		if p.Name == r.PodName && p.Namespace == r.PodNamespace {
			return &podresources.GetPodResourcesResponse{PodResources: p}, nil
		}
	}
	return nil, fmt.Errorf("pod %s in namespace %s not found", r.PodName, r.PodNamespace) // in these words, without a code
}

// List implements PodResourcesLister.
func (k *Kubelet) List(ctx context.Context, _ *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	if err := k.ready(ctx, &k.lists); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return &podresources.ListPodResourcesResponse{PodResources: append([]*podresources.PodResources(nil), k.pods...)}, nil
}
