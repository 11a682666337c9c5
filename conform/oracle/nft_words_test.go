package oracle_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/conform/internal/trial"
	"github.com/berth-net/berth/conform/oracle"
)

func TestMain(m *testing.M) { trial.Main(m) }

// ruleset has what CNI plugins, kube-proxy and firewalls use. Each line is as `nft -y list ruleset` lists it, but for counts.
const ruleset = `table inet filter {
	set blocked {
		type ipv4_addr
		elements = { 10.0.0.1, 10.0.0.2 }
	}
	set nets {
		type ipv4_addr
		flags interval
		elements = { 10.1.0.0/16, 10.3.0.5-10.3.0.7, 10.4.0.1 }
	}
	set nets6 {
		type ipv6_addr
		flags interval
		elements = { 2001:db8::/32 }
	}
	map ports {
		type inet_service : ipv4_addr
		elements = { 80 : 10.9.0.2 }
	}
	map links {
		type ifname : verdict
		elements = { "eth0" : jump other }
	}
	map both {
		type inet_proto . inet_service : verdict
		elements = { tcp . 80 : drop }
	}
	set pairs {
		type ipv4_addr . inet_service
		elements = { 10.0.0.1 . 80 }
	}
	set seen {
		type ipv4_addr
		size 100
		flags dynamic,timeout
		timeout 1m
	}
	set ranges {
		type inet_service
		flags interval
		elements = { 1000-2000 }
	}
	chain other {
	}
	chain in {
		type filter hook input priority 0; policy drop;
		ct state established,related accept
		ct state invalid drop
		ct state new tcp dport { 22, 80 } accept
		ct status dnat accept
		ct direction original accept
		ct original ip daddr 10.0.0.1 accept
		iifname "lo" accept
		iifname "eth*" counter drop
		iifname { "eth0", "eth1" } return
		iifname != "eth0" oif "lo" accept
		ip saddr 10.9.0.0/24 tcp dport 80 accept comment "a web server"
		ip saddr @blocked drop
		ip daddr != @nets goto other
		ip6 saddr fe80::/10 icmpv6 type echo-request limit rate 10/second accept
		icmp type echo-request limit rate over 10/minute burst 7 packets drop
		limit rate over 1 mbytes/second drop
		limit rate 100 kbytes/second burst 5 kbytes accept
		meta mark 0x00000010 accept
		meta mark set 0x00000020
		meta mark & 0x000000ff == 0x00000010 return
		meta mark & 0x000000ff != 0x00000010 return
		ct mark set meta mark
		meta mark set ct mark
		udp dport 1000-2000 jump other
		tcp dport != 1000-2000 accept
		tcp dport >= 1024 accept
		tcp flags syn / syn,ack log prefix "new: " level info
		tcp flags != syn / fin,syn,rst,ack accept
		log prefix "group" group 5
		iifname vmap @links
		meta l4proto . th dport vmap @both
		ip saddr != 10.0.0.0/8 reject with icmp port-unreachable
		ip6 daddr 2001:db8::1 reject with icmpv6 no-route
		meta l4proto tcp reject with tcp reset
		reject
		fib daddr type local accept
		fib daddr . iif type local accept
		add @seen { ip saddr }
		ether saddr 02:00:00:00:00:01 accept
		ip protocol icmp accept
		meta l4proto { tcp, udp } th dport 53 accept
		meta nfproto ipv6 accept
		meta pkttype broadcast drop
		ip daddr . tcp dport @pairs drop
		tcp dport @ranges accept
		meta skuid 0 accept
		notrack
		@th,16,16 0x0050 accept
		ip ttl 1 drop
	}
	chain ports-in {
		type nat hook prerouting priority -100; policy accept;
		tcp dport 8080 dnat ip to 10.9.0.2:80
		tcp dport 8081 dnat ip6 to [2001:db8::2]:80
		meta nfproto ipv4 redirect
	}
}
table ip nat {
	chain pre {
		type nat hook prerouting priority -100; policy accept;
		fib daddr type local tcp dport 8080 dnat to 10.9.0.2:80
		tcp dport 9090 redirect to :90
		tcp dport 9091 redirect to :90-99
		dnat to tcp dport map { 80 : 10.0.0.5 }
	}
	chain post {
		type nat hook postrouting priority 100; policy accept;
		ip saddr 10.9.0.2 ip daddr != 10.9.0.0/24 counter masquerade comment "id: x"
		ip saddr 10.8.0.0/16 snat to 192.0.2.1-192.0.2.5 random
		ip saddr 10.16.0.0/12 snat to 192.0.2.1 persistent
		oifname "eth0" masquerade random,persistent
		oifname "eth0" masquerade fully-random
		oifname "eth0" tcp dport 5 masquerade to :1024-65535
	}
}
table bridge b {
	chain f {
		type filter hook forward priority -200; policy accept;
		ether type ip drop
		ether saddr != 02:00:00:00:00:01 drop
		ip saddr 1.2.3.4 drop
	}
}
table netdev n {
	chain in {
		type filter hook ingress device "lo" priority 0; policy accept;
		ip saddr 1.2.3.4 drop
	}
}
`

// What nft(8) loads is told in the words in which it lists it.
func TestNftWords(t *testing.T) {
	trial.Need(t, "nft")
	file := filepath.Join(t.TempDir(), "rules")
	trial.Must(t, os.WriteFile(file, []byte(ruleset), 0o600))
	var told []string
	var listed []byte
	trial.OnNode(t, func() (err error) {
		if out, err := exec.Command("nft", "-f", file).CombinedOutput(); err != nil {
			return fmt.Errorf("nft -f: %w: %s", err, out)
		}
		if told, err = oracle.Nftables(); err == nil {
			listed, err = exec.Command("nft", "-y", "list", "ruleset").Output()
		}
		return err
	})
	for i, line := range told {
		told[i] = regexp.MustCompile(` rule \d{3} `).ReplaceAllString(line, " rule ")
	}
	want := linesOf(string(listed))
	if len(want) < 90 {
		t.Fatalf("nft lists only %d lines:\n%s", len(want), listed)
	}
	for _, line := range want {
		if !slices.Contains(told, line) {
			t.Errorf("nft lists, and the oracle does not tell:  %s", line)
		}
	}
	for _, line := range told {
		if !slices.Contains(want, line) {
			t.Errorf("the oracle tells, and nft does not list:  %s", line)
		}
	}
}

// linesOf brings what nft(8) lists to the oracle's form: a line for each thing, with its table and chain, and without counts.
func linesOf(listed string) (lines []string) {
	var table, within string
	var set []string
	for line := range strings.Lines(regexp.MustCompile(` packets \d+ bytes \d+`).ReplaceAllString(listed, "")) {
		depth := len(line) - len(strings.TrimLeft(line, "\t"))
		line = strings.TrimSpace(line)
		name := strings.TrimSuffix(line, " {")
		switch {
		case depth == 0 && line != "}" && line != "":
			table = "nft " + name
			lines = append(lines, table)
		case depth == 1 && line != "}" && line != "":
			within = table + " " + name
			set = nil
		case depth == 1 && line == "}" && !strings.Contains(within, " chain "):
			lines = append(lines, within+" { "+strings.Join(set, " ")+" }")
		case depth == 1 && line == "}" && !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, within+" {") }):
			lines = append(lines, within)
		case depth == 2 && strings.HasPrefix(line, "type ") && strings.Contains(within, " chain "):
			lines = append(lines, within+" { "+line+" }")
		case depth == 2 && strings.HasPrefix(line, "elements = "):
			for _, e := range elementsOf(strings.TrimPrefix(line, "elements = { ")) {
				lines = append(lines, within+" element "+e)
			}
		case depth == 2 && strings.Contains(within, " chain "):
			lines = append(lines, within+" rule "+line)
		case depth == 2:
			set = append(set, line+";")
		case depth > 2:
			for _, e := range elementsOf(line) {
				lines = append(lines, within+" element "+e)
			}
		}
	}
	return lines
}

// elementsOf splits a line of elements, which may go on in the next line.
func elementsOf(line string) []string {
	return strings.Split(strings.TrimSuffix(strings.TrimSuffix(line, " }"), ","), ", ")
}
