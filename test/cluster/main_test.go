// Package cluster tests Berth in a real Kubernetes cluster: etcd, API server, controller manager and scheduler, and
// nodes that have a containerd, a kubelet and a berthd each. All of it lives in namespaces of the test's own.
package cluster

import (
	"fmt"
	"os"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) {
	switch os.Args[0] {
	case machineClock:
		fmt.Fprintf(os.Stderr, "%s: beginning the clock: %v\n", os.Args[1], beginClock(os.Args[1], os.Args[2]))
		os.Exit(1)
	case machineInit:
		os.Exit(initMachine(os.Args[1], os.Args[2]))
	}
	nettest.Enter()
	os.Exit(run(m))
}

// run runs the tests, and removes what they share.
func run(m *testing.M) int {
	var err error
	if artifacts, err = os.MkdirTemp("", "berth-cluster-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(artifacts)
	return programs.Outside(m)
}

var must = nettest.Must
