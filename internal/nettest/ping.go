package nettest

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/echo"
	"github.com/berth-net/berth/internal/kernel/ns"
)

// quiet is how long NoPing waits for a reply that must not come. On one machine an echo
// takes well under a millisecond.
const quiet = 50 * time.Millisecond

// Ping waits until the address `to` answers an ICMP echo from a namespace (nil: the
// process's own), as `ip netns exec NS ping` does, and ends the test if no answer
// comes.
func Ping(t testing.TB, from *ns.Netns, to netip.Addr) {
	t.Helper()
	Need(t)
	var err error
	end := time.Now().Add(Deadline)
	for time.Now().Before(end) {
		if err = Echo(from, to, 200*time.Millisecond); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("waited %s in vain for an echo: %v", Deadline, err)
}

// NoPing fails the test if the address `to` answers one of three ICMP echos from a
// namespace (nil: the process's own).
func NoPing(t testing.TB, from *ns.Netns, to netip.Addr) {
	t.Helper()
	Need(t)
	for range 3 {
		if Echo(from, to, quiet) == nil {
			t.Errorf("%s answers an echo from %s", to, where(from))
			return
		}
	}
}

// Echo sends one ICMP echo request from a namespace (nil: the process's own)
// and waits for its reply. No reply is an error.
func Echo(from *ns.Netns, to netip.Addr, wait time.Duration) error {
	err := DoIn(from, func() error { return echo.Send(to, wait) })
	if err != nil {
		return fmt.Errorf("pinging %s from %s: %w", to, where(from), err)
	}
	return nil
}

// DoIn runs f in a namespace, nil being the process's own.
func DoIn(at *ns.Netns, f func() error) error {
	if at == nil {
		return f()
	}
	return at.Do(f)
}

func where(at *ns.Netns) string {
	if at == nil {
		return "the node"
	}
	return at.Ref().Path
}
