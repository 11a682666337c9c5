// Package critest is a container runtime in memory, for tests: it answers ListPodSandbox by gRPC's own library and CRI's own types, as
// containerd and CRI-O do. It fails, hangs, and speaks garbage.
package critest

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is a container runtime on a socket.
type Runtime struct {
	cri.UnimplementedRuntimeServiceServer
	Socket string

	mu        sync.Mutex
	sandboxes map[string]*cri.PodSandbox
	hangs     bool
	fails     string
}

// Serve starts a runtime, until the test ends.
func Serve(t *testing.T) *Runtime {
	t.Helper()
	r := &Runtime{Socket: filepath.Join(t.TempDir(), "cri.sock"), sandboxes: map[string]*cri.PodSandbox{}}
	l, err := net.Listen("unix", r.Socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(s, r)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return r
}

// Put adds a pod's sandbox, or changes it.
func (r *Runtime) Put(id, namespace, name, uid string, ready bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := cri.PodSandboxState_SANDBOX_NOTREADY
	if ready {
		state = cri.PodSandboxState_SANDBOX_READY
	}
	r.sandboxes[id] = &cri.PodSandbox{
		Id: id, Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: namespace, Uid: uid, Attempt: 1}, State: state, CreatedAt: 1,
		Labels: map[string]string{"app": name}, Annotations: map[string]string{"berth.dev/pool": "blue"}, RuntimeHandler: "runc",
	}
}

// Remove removes a sandbox. Nobody is told.
func (r *Runtime) Remove(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sandboxes, id)
}

// Hang has the runtime answer nobody, and Fail has it answer with an error (an empty text: it answers as it should).
func (r *Runtime) Hang(hangs bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hangs = hangs
}

func (r *Runtime) Fail(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fails = text
}

// ListPodSandbox implements CRI.
func (r *Runtime) ListPodSandbox(ctx context.Context, _ *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	r.mu.Lock()
	hangs, fails := r.hangs, r.fails
	var out cri.ListPodSandboxResponse
	for _, s := range r.sandboxes {
		out.Items = append(out.Items, s)
	}
	r.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if fails != "" {
		return nil, status.Error(codes.Unavailable, fails)
	}
	return &out, nil
}
