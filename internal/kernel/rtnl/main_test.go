package rtnl_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// open connects to a network namespace; nil is the test's node.
func open(t testing.TB, at *ns.Netns) *rtnl.Conn {
	t.Helper()
	nettest.Need(t)
	c, err := rtnl.Open(at)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// veth makes a pair between a namespace and a pod, both ends up.
func veth(t testing.TB, c *rtnl.Conn, name string) (l rtnl.Link, pod *ns.Netns) {
	t.Helper()
	pod = nettest.Pod(t)
	mac, err := net.ParseMAC("02:00:00:00:00:01")
	must(t, err)
	must(t, c.Do(
		rtnl.AddVeth(rtnl.End{Name: name, MAC: mac, MTU: 1400}, 7, rtnl.End{Name: "eth0", MAC: mac}, pod.Fd()),
		rtnl.SetLink(name, rtnl.Up()),
		rtnl.GetLink(name, &l)))
	t.Cleanup(func() { c.Do(rtnl.DelLink(name)) })
	must(t, open(t, pod).Do(rtnl.SetLink("eth0", rtnl.Up())))
	return l, pod
}

// named returns a function that keeps links whose names begin with a prefix.
func named(prefix string) func(rtnl.Link) (bool, error) {
	return func(l rtnl.Link) (bool, error) { return strings.HasPrefix(l.Name, prefix), nil }
}

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
