// Package sandbox asks a container runtime which pods' sandboxes it has: the call ListPodSandbox of the Container Runtime Interface
// (CRI v1, https://github.com/kubernetes/cri-api), over the runtime's socket.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Sandbox is a pod's sandbox.
type Sandbox struct {
	ID    string // what the runtime calls the container in CNI (CNI_CONTAINERID)
	Ready bool   // false: it has been stopped, or has ended, and the kubelet removes it later

	Namespace, Name, UID string // of the pod
}

// Within is how long a runtime may take to answer. It has to look into its memory alone.
const Within = 5 * time.Second

// mostBytes is the largest answer, as the kubelet has it (16 MiB): some 30,000 sandboxes.
const mostBytes = 16 << 20

// List returns all sandboxes that the runtime behind an endpoint has, of pods that run and of those that have ended. It takes at
// most Within. A sandbox that is being made is not among them yet.
func List(ctx context.Context, e Endpoint) ([]Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, Within)
	defer cancel()
	all, err := list(ctx, e)
	if err != nil {
		return nil, fmt.Errorf("asking the container runtime at %s for its sandboxes: %w", e, err)
	}
	return all, nil
}

func list(ctx context.Context, e Endpoint) ([]Sandbox, error) {
	conn, err := grpc.NewClient(e.String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostBytes)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer, err := cri.NewRuntimeServiceClient(conn).ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, plain(err)
	}
	var all []Sandbox
	for _, s := range answer.GetItems() {
		if s.GetId() == "" { // it would make a sandbox that is there look gone
			return nil, errors.New("its answer has a sandbox without an ID")
		}
		pod := s.GetMetadata()
		all = append(all, Sandbox{s.GetId(), s.GetState() == cri.PodSandboxState_SANDBOX_READY, pod.GetNamespace(), pod.GetName(), pod.GetUid()})
	}
	return all, nil
}

// plain says what gRPC's statuses mean here.
func plain(err error) error {
	switch s := status.Convert(err); s.Code() {
	case codes.Unimplemented:
		return fmt.Errorf("it does not speak CRI v1, or its CRI plugin is disabled: %s", s.Message())
	case codes.DeadlineExceeded:
		return context.DeadlineExceeded
	default:
		return fmt.Errorf("%s (gRPC's %s)", s.Message(), s.Code())
	}
}
