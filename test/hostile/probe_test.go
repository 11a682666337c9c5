package hostile

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// nft runs a script of nft's.
func nft(t *testing.T, script string) {
	t.Helper()
	cmd := exec.Command(nettest.Program(t, "nft"), "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s\n%s", err, out, script)
	}
}

// probe notes which packets of a link have passed all that could drop them: on
// their way into the node, and on their way through it.
type probe struct {
	t    *testing.T
	name string
}

// Where a probe looks.
const (
	into    = "into"
	through = "through"
)

// newProbe looks at what comes by a link, until the test ends.
func newProbe(t *testing.T, link string) *probe {
	t.Helper()
	p := &probe{t, "probe-" + link}
	script := fmt.Sprintf("table inet %s {\n", p.name)
	for hook, at := range map[string]string{"input": into, "forward": through} {
		rules := ""
		for _, family := range []string{"4", "6"} {
			ip := map[string]string{"4": "ip", "6": "ip6"}[family]
			script += fmt.Sprintf("set %s%s { type ipv%s_addr . ipv%s_addr . inet_proto; flags dynamic; size 65536; }\n", at, family, family, family)
			rules += fmt.Sprintf("iifname %q meta nfproto ipv%s add @%s%s { %s saddr . %s daddr . meta l4proto };\n", link, family, at, family, ip, ip)
		}
		script += fmt.Sprintf("chain %s { type filter hook %s priority 500; %s }\n", hook, hook, rules)
	}
	nft(t, script+"}")
	t.Cleanup(func() { nft(t, "delete table inet "+p.name) })
	return p
}

// passed lists the packets that have passed, each as "SOURCE DESTINATION PROTOCOL".
func (p *probe) passed(where string) (list []string) {
	p.t.Helper()
	for _, family := range []string{"4", "6"} {
		raw, err := exec.Command(nettest.Program(p.t, "nft"), "-j", "list", "set", "inet", p.name, where+family).Output()
		if err != nil {
			p.t.Fatalf("nft list set: %v", err)
		}
		var answer struct {
			Nftables []struct {
				Set struct {
					Elem []struct{ Concat []any }
				}
			}
		}
		if err := json.Unmarshal(raw, &answer); err != nil {
			p.t.Fatalf("nft list set: %v\n%s", err, raw)
		}
		for _, o := range answer.Nftables {
			for _, e := range o.Set.Elem {
				list = append(list, strings.TrimSuffix(fmt.Sprintln(e.Concat...), "\n"))
			}
		}
	}
	return list
}

// settled waits until the pod's last packet is through: settled sends a packet of its own behind that
// packet, on the same wire with the pod's own address, and waits for its own packet.
func (p *probe) settled(w *wire, of *pod) {
	p.t.Helper()
	last := ether(of.mac, w.mac, packet(of.ip4, node4, marker, make([]byte, 8)))
	nettest.Eventually(p.t, "the pod's last packet", func() bool {
		w.send(last)
		for _, passed := range p.passed(into) {
			if strings.HasSuffix(passed, fmt.Sprint(" ", marker)) {
				return true
			}
		}
		return false
	})
}
