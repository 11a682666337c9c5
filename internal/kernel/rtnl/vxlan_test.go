package rtnl_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

// A VXLAN device reads as it was made. What it sends where is listed as it was set, and a late deletion does not take
// away what somebody has set since.
func TestVXLAN(t *testing.T) {
	for i, local := range []string{"192.0.2.1", "2001:db8::1"} {
		t.Run(local, func(t *testing.T) {
			c := open(t, nil)
			want := rtnl.VXLAN{
				Name: fmt.Sprint("tunnel", i), MAC: "0a:00:00:00:00:01", MTU: 1450, VNI: 98, Port: uint16(4789 + i), Local: addr(local),
			}
			must(t, c.Do(rtnl.AddVXLAN(want)))
			t.Cleanup(func() { must(t, c.Do(rtnl.DelLink(want.Name))) })
			if err := c.Do(rtnl.AddVXLAN(want)); !errors.Is(err, kernel.ErrExists) {
				t.Errorf("made again: %v", err)
			}
			nettest.Run(t, nil, "ip link add learns type vxlan id 7 dstport 4790 local 192.0.2.1")
			defer nettest.Run(t, nil, "ip link del learns")
			got, err := c.VXLANs()
			must(t, err)
			if len(got) != 1 {
				t.Fatalf("the devices are %+v", got)
			}
			want.Index = got[0].Index
			if got[0] != want {
				t.Errorf("the device is %+v, not %+v", got[0], want)
			}
			to := func(mac, remote string) rtnl.Remote {
				return rtnl.Remote{MAC: mac, Addr: addr(remote), Index: want.Index}
			}
			a, b, other := to("0a:00:00:00:00:0a", local+"1"), to("0a:00:00:00:00:0a", local+"2"), to("0a:00:00:00:00:0b", local+"3")
			must(t, c.Do(rtnl.SetRemote(a), rtnl.SetRemote(other), rtnl.SetRemote(b)))
			must(t, c.Do(rtnl.DelRemote(a))) // b has replaced it
			has := func(want ...rtnl.Remote) {
				t.Helper()
				got, err := c.Remotes(want[0].Index)
				must(t, err)
				if len(got) != len(want) || slices.ContainsFunc(want, func(r rtnl.Remote) bool { return !slices.Contains(got, r) }) {
					t.Errorf("the device sends to %v, not %v", got, want)
				}
			}
			has(b, other)
			must(t, c.Do(rtnl.DelRemote(b)))
			has(other)
			if err := c.Do(rtnl.DelRemote(b)); !errors.Is(err, kernel.ErrNotFound) {
				t.Errorf("deleting it again: %v", err)
			}
			mac, _ := net.ParseMAC(other.MAC)
			must(t, c.Do(rtnl.SetLink(want.Name, rtnl.Up()), rtnl.SetNeighbour(addr("fe80::b"), mac, want.Index)))
			must(t, c.Do(rtnl.DelNeighbour(addr("fe80::b"), want.Index)))
			if err := c.Do(rtnl.DelNeighbour(addr("fe80::b"), want.Index)); !errors.Is(err, kernel.ErrNotFound) {
				t.Errorf("deleting a neighbour again: %v", err)
			}
		})
	}
}
