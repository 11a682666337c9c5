package rtnl_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/kernel/linklock"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

// Each request that takes the kernel's lock of all links waits for its turn. A deletion does not wait.
func TestTurns(t *testing.T) {
	nettest.Need(t)
	n := nettest.Pod(t)
	nettest.Run(t, n, "ip link add name one type bridge")
	nettest.Run(t, n, "ip link add name two type bridge")
	c, err := rtnl.Open(n)
	must(t, err)
	defer c.Close()
	done := make(chan error, 2)
	must(t, linklock.Do(func() error {
		go func() { done <- c.Do(rtnl.SetLink("one", rtnl.Up())) }()
		go func() {
			done <- n.Do(func() error { return ns.SetSysctl("ipv6/conf/one/disable_ipv6", "1") })
		}()
		nettest.Eventually(t, "two wait beside this one", func() bool {
			stacks := make([]byte, 1<<20)
			return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "linklock.Do(") == 3
		})
		must(t, c.Do(rtnl.DelLink("two")))
		return nil
	}))
	must(t, <-done)
	must(t, <-done)
}
