package nft_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/nettest"
)

// Barriers judges what each of these firewalls of other programs does with a pod's packet.
func TestBarriers(t *testing.T) {
	nettest.Need(t)
	sender := nft.Sender{
		Instance: "abcdefghij", Uplinks: []string{"eth0"},
		Pools: []netip.Prefix{netip.MustParsePrefix("10.88.0.0/16"), netip.MustParsePrefix("fd00:88::/64")},
		Name: func(index int) (string, error) {
			if index == 1 {
				return "lo", nil
			}
			return "", fmt.Errorf("no link %d", index)
		},
	}
	const drop, accept = "policy drop;", "policy accept;"
	forward := func(family, policy, rules string) string {
		return fmt.Sprintf("table %s fw { chain forward { type filter hook forward priority 0; %s %s; } }", family, policy, rules)
	}
	for name, c := range map[string]struct {
		ruleset string
		want    string // a word for each barrier: its family, with ? if it is not sure
	}{
		"nobody":                     {"", ""},
		"accept":                     {forward("inet", accept, ""), ""},
		"drop":                       {forward("inet", drop, ""), "4 6"},
		"drop of IPv4":               {forward("ip", drop, ""), "4"},
		"drop of IPv6":               {forward("ip6", drop, ""), "6"},
		"established only":           {forward("ip", drop, "ct state established,related accept"), "4"},
		"established, by a set":      {forward("ip", drop, "ct state { established, related } accept"), "4"},
		"new":                        {forward("ip", drop, "ct state new accept"), ""},
		"new, by a set":              {forward("ip", drop, "ct state { new, established } accept"), ""},
		"not new":                    {forward("ip", accept, "ct state != { established, related } drop"), "4"},
		"invalid":                    {forward("ip", accept, "ct state invalid drop"), ""},
		"redirected":                 {forward("ip", drop, "ct status dnat accept"), "4"},
		"not redirected":             {forward("ip", accept, "ct status & dnat == 0 drop"), "4"},
		"docker0":                    {forward("ip", drop, `iifname "docker0" accept; oifname "docker0" accept`), "4"},
		"not docker0":                {forward("ip", accept, `iifname != "docker0" drop`), "4"},
		"every link of Berth":        {forward("ip", drop, `iifname "b*" accept`), ""},
		"every link of the instance": {forward("ip", drop, `iifname "babcd*" accept`), ""},
		"one pod":                    {forward("ip", drop, `iifname "babcdaaaaaaaaaa" accept`), "4?"},
		"bridges":                    {forward("ip", drop, `iifname "br-*" accept`), "4"},
		"the uplink":                 {forward("ip", drop, `oifname "eth0" accept`), ""},
		"some uplinks":               {forward("ip", drop, `oifname "et*" accept`), ""},
		"another uplink":             {forward("ip", drop, `oifname { "eth1", "wlan0" } accept`), "4"},
		"lo":                         {forward("ip", drop, `iif 1 accept`), "4"},
		"an index":                   {forward("ip", drop, `oif 4242 accept`), "4?"},
		"the pool":                   {forward("ip", drop, `ip saddr 10.88.0.0/16 accept`), ""},
		"more than the pool":         {forward("ip", drop, `ip saddr 10.0.0.0/8 accept`), ""},
		"an odd network":             {forward("ip", drop, `ip saddr 10.80.0.0/12 accept`), ""},
		"half of the pool":           {forward("ip", drop, `ip saddr 10.88.0.0/17 accept`), "4?"},
		"another pool":               {forward("ip", drop, `ip saddr 10.99.0.0/16 accept`), "4"},
		"all but the pool":           {forward("ip", accept, `ip saddr != 10.88.0.0/16 drop`), ""},
		"the pool of IPv6":           {forward("inet", drop, `ip6 saddr fd00:88::/64 accept`), "4"},
		"somewhere":                  {forward("ip", accept, `ip daddr 1.1.1.0/24 drop`), "4?"},
		"a port":                     {forward("ip", accept, `tcp dport 25 reject`), "4?"},
		"the last rule":              {forward("ip", accept, `counter; log; reject`), "4"},
		"a limit":                    {forward("ip", accept, `limit rate 10/second drop`), "4?"},
		"a jump": {`table ip fw {
			chain mine { ip saddr 10.88.0.0/16 accept; }
			chain forward { type filter hook forward priority 0; policy drop; jump mine; } }`, ""},
		"a return": {`table ip fw {
			chain mine { ct state new return; accept; }
			chain forward { type filter hook forward priority 0; policy accept; jump mine; drop; } }`, "4"},
		"a goto": {`table ip fw {
			chain mine { ct state established accept; }
			chain forward { type filter hook forward priority 0; policy drop; goto mine; accept; } }`, "4"},
		"a verdict map": {`table ip fw {
			chain mine { accept; }
			chain forward { type filter hook forward priority 0; policy drop; iifname vmap { "docker0" : jump mine }; } }`, "4?"},
		"two chains": {forward("ip", drop, "") + "\n" +
			"table ip other { chain f { type filter hook forward priority 10; policy accept; meta l4proto tcp drop; } }", "4 4?"},
		"other hooks": {`table inet fw {
			chain in { type filter hook input priority 0; policy drop; }
			chain out { type filter hook output priority 0; policy drop; } }`, ""},
		"dormant":     {`table ip fw { flags dormant; chain f { type filter hook forward priority 0; policy drop; } }`, ""},
		"Berth's own": {"table inet berth-abcdefghij { chain through { type filter hook forward priority 0; policy drop; } }", ""},
	} {
		t.Run(name, func(t *testing.T) {
			load(t, c.ruleset)
			found, err := nft.Barriers(sender)
			nettest.Must(t, err)
			var have []string
			for _, b := range found {
				word := "4"
				if b.IPv6 {
					word = "6"
				}
				if !b.Sure {
					word += "?"
				}
				have = append(have, word)
			}
			if have := strings.Join(have, " "); have != c.want {
				t.Errorf("barriers %q, want %q", have, c.want)
			}
		})
	}
}

// load loads a ruleset by `nft -f`, until the test ends. The ruleset must have a ; before the } of each
// chain.
func load(t *testing.T, ruleset string) {
	t.Helper()
	cmd := exec.Command(nettest.Program(t, "nft"), "-f", "-")
	cmd.Stdin = strings.NewReader(strings.ReplaceAll(ruleset, "; }", "\n}\n")) // nft wants a newline before a }
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", ruleset, err, out)
	}
	t.Cleanup(func() { nettest.Run(t, nil, "nft flush ruleset") })
}

// Barriers judges the rules that iptables makes by nftables like any other rules.
func TestBarriersOfIptables(t *testing.T) {
	nettest.Need(t)
	sender := nft.Sender{Pools: []netip.Prefix{netip.MustParsePrefix("10.88.0.0/16")}, Uplinks: []string{"eth0"}}
	t.Cleanup(func() { nettest.Run(t, nil, "nft flush ruleset") })
	for _, c := range []struct {
		command string
		sure    bool
	}{
		{"-P FORWARD DROP", true}, // as Docker does
		{"-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", true},
		{"-A FORWARD -i docker0 -j ACCEPT", true},
		{"-A FORWARD -o docker0 -j ACCEPT", true},
		{"-N DOCKER-USER", true},
		{"-A FORWARD -j DOCKER-USER", true},
		{"-A DOCKER-USER -p tcp --dport 80 -j ACCEPT", false},
	} {
		nettest.Run(t, nil, "iptables-nft "+c.command)
		found, err := nft.Barriers(sender)
		if err != nil || len(found) != 1 || found[0].Sure != c.sure {
			t.Fatalf("after %s: %v, %v; sure: want %t", c.command, found, err, c.sure)
		}
		if have, want := found[0].String(), "chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }"; have != want {
			t.Errorf("%s, want %s", have, want)
		}
	}
	nettest.Run(t, nil, "iptables-nft -I DOCKER-USER -s 10.88.0.0/16 -j ACCEPT")
	if found, err := nft.Barriers(sender); err != nil || len(found) > 0 {
		t.Errorf("%v, %v: pods are let through", found, err)
	}
}

// BaseChains shows the base chains of every family in nft's words.
func TestBaseChains(t *testing.T) {
	nettest.Need(t)
	load(t, `table arp a { chain i { type filter hook input priority 0; } }
		table bridge b { chain f { type filter hook forward priority -200; policy drop; } }
		table netdev n { chain g { type filter hook ingress device lo priority 5; } }
		table inet i { chain none { counter; } chain p { type nat hook prerouting priority -100; } }`)
	all, err := nft.BaseChains()
	nettest.Must(t, err)
	var have []string
	for _, c := range all {
		have = append(have, c.String())
	}
	for _, want := range []string{
		"chain arp a i { type filter hook input priority 0; policy accept; }",
		"chain bridge b f { type filter hook forward priority -200; policy drop; }",
		"chain netdev n g { type filter hook ingress priority 5; policy accept; }",
		"chain inet i p { type nat hook prerouting priority -100; policy accept; }",
	} {
		if !strings.Contains(strings.Join(have, "\n"), want) {
			t.Errorf("%q is not among %q", want, have)
		}
	}
	if len(have) != 4 {
		t.Errorf("%q", have)
	}
}

// A chain that lets one pool through stops the other one for certain.
func TestBarriersOfTwoPools(t *testing.T) {
	nettest.Need(t)
	sender := nft.Sender{Pools: []netip.Prefix{netip.MustParsePrefix("10.88.0.0/16"), netip.MustParsePrefix("10.89.0.0/24")}}
	load(t, "table ip fw { chain f { type filter hook forward priority 0; policy drop; ip saddr 10.88.0.0/16 accept; } }")
	if found, err := nft.Barriers(sender); err != nil || len(found) != 1 || !found[0].Sure {
		t.Errorf("%+v, %v", found, err)
	}
	nettest.Run(t, nil, "nft add rule ip fw f ip saddr 10.89.0.0/24 accept")
	if found, err := nft.Barriers(sender); err != nil || len(found) > 0 {
		t.Errorf("%+v, %v: both are let through", found, err)
	}
}
