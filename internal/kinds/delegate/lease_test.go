package delegate_test

import (
	"context"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/delegate"
	"github.com/berth-net/berth/internal/kinds/kindtest"
)

func TestLeaseKind(t *testing.T) {
	w := newWorld(t)
	k := w.LeaseKind()
	k.Verify = hold.VerifyEach(func(context.Context, hold.Hold) error { return nil }) // as in TestIPAMKind
	kindtest.Run(t, kindtest.Kind{
		Kind:   k,
		Spec:   func(t testing.TB, owner hold.ID) hold.Spec { return &delegate.Lease{IPAM: *w.lender(t, owner)} },
		Unseen: true,
		Example: &delegate.Lease{IPAM: delegate.IPAM{Spec: delegate.Spec{
			ID: "abcdefghij", Network: "net-a", Version: "1.0.0", Type: "dhcp", Plugins: []string{`{"type":"berth-cni"}`}, Container: "c1",
			Netns: ns.Ref{Path: "/run/netns/p", Dev: 4, Ino: 4026532000, ID: 7}, Ifname: "net1", Args: "K8S_POD_NAME=web", Folders: []string{"/opt/cni/bin"},
			DisableCheck: true, DisableGC: true, Run: "run", Files: []string{"/file"}, Result: `{"cniVersion":"1.0.0"}`, Done: true,
		}}},
		Snapshot: func() string { return strings.Join(w.state(), "\n") },
	})
}

// The addresses of a lease are names of its owner's that do not rest.
func TestLeaseNames(t *testing.T) {
	s := &delegate.Lease{IPAM: delegate.IPAM{Spec: delegate.Spec{Version: "1.0.0", Done: true, Result: `{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24"}]}`}}}
	o := hold.Owner{Holds: []hold.Hold{{Spec: s}}}
	if names := s.Names(); len(names) != 1 || names[0].Name != "10.1.2.3" || len(o.Lent()) != 1 {
		t.Errorf("its names are %v, and lent are %v", names, o.Lent())
	}
}
