package nft

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// formerly is a ruleset's table as the first agents wrote it (eec9484): the cut at
// priority raw, one rule in the same chain that checks sources, and neither limits nor
// blocked addresses. An agent finds such a table when it takes the place of one of the first agents.
func formerly(r Ruleset) string {
	return fmt.Sprintf(`table inet %[1]s
delete table inet %[1]s
table inet %[1]s {
	set pools4 {
		type ipv4_addr
		flags interval
		elements = { 10.88.0.0/16, 10.99.0.0/24 }
	}

	set excluded4 {
		type ipv4_addr
		flags interval
	}

	set pools6 {
		type ipv6_addr
		flags interval
		elements = { fd88::/64 }
	}

	set excluded6 {
		type ipv6_addr
		flags interval
	}

	chain cut_in {
		type filter hook prerouting priority raw; policy accept;
		iifgroup %[2]d-%[3]d drop comment "%[5]s"
		iifgroup %[4]d fib saddr . iif oif missing drop comment "%[5]s"
	}

	chain cut_out {
		type filter hook postrouting priority raw; policy accept;
		oifgroup %[2]d-%[3]d drop comment "%[5]s"
	}

	chain nat_out {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr @pools4 ip daddr != @pools4 ip daddr != @excluded4 masquerade fully-random comment "%[5]s"
		ip6 saddr @pools6 ip6 daddr != @pools6 ip6 daddr != @excluded6 masquerade fully-random comment "%[5]s"
	}
}
`, r.Table(), r.CutLow, r.CutHigh, r.Live, r.Owner)
}

// An agent takes over the table of an earlier version, which has other rules. Pods that the old
// table cut off stay cut off at every moment, and the rules that the old table lacked are in
// force from then on.
func TestTakeoverOfAFormerTable(t *testing.T) {
	programs.Need(t, "nft")
	w, a, b, beyond := newNode(t)
	tables := Open(w.node.at)
	r := sample()
	r.Blocked = append(r.Blocked, prefixes("192.0.2.2/32", "2001:db8::2/128")...)
	w.group(a, r.CutLow)
	w.group(b, r.Live)
	nftRun(t, w.node.at, formerly(r), "-f", "-")
	if _, err := tables.Verify(r); err == nil || errors.Is(err, ErrGone) {
		t.Errorf("the former table is seen as: %v", err)
	}
	if owner, there, err := tables.Holder(r.Instance); owner != r.Owner || !there || err != nil {
		t.Errorf("its holder is %q, %v, %v", owner, there, err)
	}
	notA := func(from, to *place) bool { return from != a && to != a }
	w.exchange("before", notA) // b reaches the addresses that the new table blocks

	taken := make(chan error, 1)
	go func() {
		defer close(taken)
		for range 30 {
			cmd := nettest.Command(w.node.at, "nft", "-f", "-") // nft, too, writes the table in one transaction
			cmd.Stdin = strings.NewReader(formerly(r))
			if out, err := cmd.CombinedOutput(); err != nil {
				taken <- fmt.Errorf("%w: %s", err, out)
				return
			}
			if err := tables.Replace(r); err != nil {
				taken <- err
				return
			}
		}
	}()
	keys := w.sendUntil(a, b, taken)
	wantWhole(t, tables, r)
	w.exchange("afterwards", func(from, to *place) bool {
		return notA(from, to) && (from != b || to != beyond) && (from != beyond || to != b)
	})
	w.wantUnheard(keys)
	t.Logf("%d datagrams sent meanwhile", len(keys))
}
