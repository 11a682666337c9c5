// Package cluster tests Berth in a real Kubernetes cluster: etcd, API server, controller manager and scheduler, and
// nodes that have a containerd, a kubelet and a berthd each. All of it lives in namespaces of the test's own.
package cluster

import (
	"os"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) {
	if os.Args[0] == machineInit {
		os.Exit(initMachine(os.Args[1], os.Args[2]))
	}
	programs.Main(m)
}

var must = nettest.Must
