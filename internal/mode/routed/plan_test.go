package routed

import (
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/flows"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/nettest"
)

// The ledger can write everything that ADD accepts: a pod with as many host ports as a
// configuration may have, with all other texts as long as they may be, and with six bytes of JSON
// for each byte of these texts.
func TestLongestRecordIsWritten(t *testing.T) {
	id := hold.NewID()
	long := func(n int) string { return strings.Repeat("<", n) }
	dns := fmt.Sprintf(`["%s"]`, strings.Repeat(long(255)+`","`, 7)+long(255))
	config := func(ports int) []byte {
		var l []string
		for i := range ports {
			l = append(l, fmt.Sprintf(`{"hostPort":%d,"containerPort":%d,"protocol":"sctp"}`, 65535-i, 65535-i))
		}
		return fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","type":"berth-cni",
			"dns":{"nameservers":["fe80::1%%%s"],"domain":"%s","search":%s,"options":%s},"runtimeConfig":{"portMappings":[%s]}}`,
			long(200), long(255), dns, dns, strings.Join(l, ","))
	}
	most := 0
	for step := 1 << 12; step > 0; step /= 2 {
		if _, e := netconf.Parse(config(most + step)); e == nil {
			most += step
		}
	}
	if most < 500 {
		t.Fatalf("a configuration may have %d host ports", most)
	}
	c, e := netconf.Parse(config(most))
	if e != nil {
		t.Fatal(e)
	}
	path := "/" + strings.Repeat("\x01", 4094)
	if e := cni.CheckNetnsPath(path); e != nil {
		t.Fatal(e)
	}
	r := attachment.Record{
		Key:   attachment.Key{Network: strings.Repeat("n", api.MaxID), ContainerID: strings.Repeat("c", api.MaxID), Ifname: "<<<<<<<<<<<<<<<"},
		Netns: ns.Ref{Path: path, Dev: math.MaxUint64, Ino: math.MaxUint64, ID: math.MaxUint64},
		Pod:   &api.Pod{Namespace: long(cni.MaxPodName), Name: long(cni.MaxPodName), UID: long(api.MaxID), InfraContainer: long(api.MaxID)},
		Pool:  strings.Repeat("p", api.MaxID), Mode: "routed", DNS: types.DNS(c.DNS),
		Created: time.Now(), Made: math.MaxInt64, Started: math.MaxInt64, Epoch: strings.Repeat("e", 100),
	}
	addrs := []netip.Addr{netip.MustParseAddr("100.100.100.100"), netip.MustParseAddr("fd00:1111:2222:3333:4444:5555:6666:7777")}
	o := plan(id, strings.Repeat("i", api.MaxID), r, wish{MTU: 65535, Ports: mode.Mappings(c.Ports, addrs)}, addrs)

	kinds := hold.Kinds{
		{New: func() hold.Spec { return new(flows.Spec) }},
		{New: func() hold.Spec { return new(link.Spec) }},
		{New: func() hold.Spec { return new(hostports.Spec) }},
	}
	l, err := ledger.Open(ledger.Options{Path: filepath.Join(t.TempDir(), "ledger.db"), Kinds: kinds})
	nettest.Must(t, err)
	defer l.Close()
	if err := l.Commit(t.Context(), ledger.Begin(o)); err != nil {
		t.Errorf("with %d host ports: %v", most, err)
	}
}
