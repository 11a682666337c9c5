// Package sandbox asks a container runtime which pods' sandboxes it has: the call ListPodSandbox of the Container Runtime Interface
// (CRI v1, https://github.com/kubernetes/cri-api), over the runtime's socket.
//
// Its files: sandbox (the question), endpoint (which socket), grpc (a unary call of gRPC over HTTP/2), and wire (the two messages, as
// protocol buffers have them). It has no gRPC library, because that would make berth a third larger for one call:
// docs/DEPENDENCIES.md has the figures. Package critest answers by that library, in tests.
package sandbox

import (
	"context"
	"fmt"
	"time"
)

// Sandbox is a pod's sandbox.
type Sandbox struct {
	ID    string // what the runtime calls the container in CNI (CNI_CONTAINERID)
	Ready bool   // false: it has been stopped, or has ended, and the kubelet removes it later

	Namespace, Name, UID string // of the pod
}

// listPods is the path of the call: /PACKAGE.SERVICE/METHOD of CRI's api.proto.
const listPods = "/runtime.v1.RuntimeService/ListPodSandbox"

// Within is how long a runtime may take to answer. It has to look into its memory alone.
const Within = 5 * time.Second

// List returns all sandboxes that the runtime behind an endpoint has, of pods that run and of those that have ended. It takes at
// most Within. A sandbox that is being made is not among them yet.
func List(ctx context.Context, e Endpoint) ([]Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, Within)
	defer cancel()
	answer, err := call(ctx, string(e), listPods, nil) // no filter: an empty message
	if err == nil {
		var all []Sandbox
		if all, err = parseList(answer); err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("asking the container runtime at %s for its sandboxes: %w", e, err)
}
