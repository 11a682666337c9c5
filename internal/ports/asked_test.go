package ports

import (
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
)

// A port leads to a pod's port alone: a port of all addresses by each address of its family, and a port of one address by that
// one.
func TestLeads(t *testing.T) {
	mapped := func(host, pod string) nft.Mapping {
		return nft.Mapping{Protocol: "tcp", Host: netip.MustParseAddrPort(host), Pod: netip.MustParseAddrPort(pod)}
	}
	spec := &hostports.Spec{Mappings: []nft.Mapping{mapped("0.0.0.0:80", "10.88.0.7:8080"), mapped("192.0.2.1:81", "10.88.0.7:8081")}}
	o := hold.Owner{ID: hold.NewID()}
	o.Holds = []hold.Hold{{Owner: o.ID, Spec: spec}}
	for _, m := range spec.Mappings {
		o.Names = append(o.Names, hostports.Name(m))
	}
	kind := hold.Kind{New: func() hold.Spec { return new(hostports.Spec) }}
	l, err := ledger.Open(ledger.Options{Path: filepath.Join(t.TempDir(), "ledger.db"), Kinds: hold.Kinds{kind}})
	nettest.Must(t, err)
	defer l.Close()
	nettest.Must(t, l.Commit(t.Context(), ledger.Begin(o)))
	p := New(&daemon.Core{Ledger: l}, attachment.NewIndex(), masquerades{}, others{})
	p.Restore([]hold.Owner{o})
	for _, tt := range []struct {
		protocol, at, to string
		leads            bool
	}{
		{"tcp", "192.0.2.1:80", "10.88.0.7:8080", true},
		{"tcp", "192.0.2.2:80", "10.88.0.7:8080", true},
		{"tcp", "192.0.2.1:81", "10.88.0.7:8081", true},
		{"tcp", "192.0.2.2:81", "10.88.0.7:8081", false},
		{"tcp", "192.0.2.1:80", "10.88.0.7:8081", false},
		{"tcp", "192.0.2.1:80", "10.88.0.8:8080", false},
		{"tcp", "[2001:db8::1]:80", "10.88.0.7:8080", false},
		{"udp", "192.0.2.1:80", "10.88.0.7:8080", false},
		{"tcp", "192.0.2.1:82", "10.88.0.7:8080", false},
	} {
		if got := p.Leads(tt.protocol, netip.MustParseAddrPort(tt.at), netip.MustParseAddrPort(tt.to)); got != tt.leads {
			t.Errorf("%s %s leads to %s: %t", tt.protocol, tt.at, tt.to, got)
		}
	}
}
