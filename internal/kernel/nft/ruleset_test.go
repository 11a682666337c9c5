package nft

import (
	"testing"

	"github.com/berth-net/berth/internal/cidrs"
)

func TestRulesetString(t *testing.T) {
	r := Ruleset{
		Instance: "abcdefghij", Owner: "ownerowner",
		CutLow: 1<<30 + 2, CutHigh: 1<<30 + 1023, Live: 1 << 30,
		Blocked: prefixes("169.254.0.0/16", "fd00:ec2::254/128"), Connections: 65536,
		Masquerade: true,
		Pools:      prefixes("10.88.0.0/16", "fd88::/64", "10.99.0.0/24", "10.99.2.0/23", "10.99.1.0/24"),
		Excluded:   cidrs.Of(prefixes("192.168.0.0/16")...),
	}
	want := `table inet berth-abcdefghij {
	set pools4 {
		type ipv4_addr
		flags interval
		elements = { 10.88.0.0/16,
			     10.99.0.0/24,
			     10.99.1.0/24,
			     10.99.2.0/23 }
	}

	set pools6 {
		type ipv6_addr
		flags interval
		elements = { fd88::/64 }
	}

	set resumed {
		type iface_index
		size 65535
		flags dynamic
	}

	set tired {
		type iface_index
		size 65535
		flags dynamic,timeout
		timeout 1m0s
	}

	set counted {
		type iface_index
		size 65535
		flags dynamic
	}

	set crowded {
		type iface_index
		size 65535
		flags dynamic,timeout
		timeout 5s
	}

	set strict {
		type iface_index
		size 65535
		flags dynamic,timeout
		timeout 1h0m0s
	}

	set hasty {
		type iface_index
		size 65535
		flags dynamic,timeout
		timeout 1m0s
	}

	set excluded4 {
		type ipv4_addr
		flags interval
		elements = { 192.168.0.0/16 }
	}

	set excluded6 {
		type ipv6_addr
		flags interval
	}

	set blocked4 {
		type ipv4_addr
		flags interval
		elements = { 169.254.0.0/16 }
	}

	set blocked6 {
		type ipv6_addr
		flags interval
		elements = { fd00:ec2::254 }
	}

	chain cut_in {
		type filter hook prerouting priority -450; policy accept;
		iifgroup 1073741826-1073742847 drop comment "ownerowner"
		iifgroup 1073741824 ip saddr 0.0.0.0 drop comment "ownerowner"
		iifgroup 1073741824 ip6 saddr :: drop comment "ownerowner"
		iifgroup 1073741824 ip6 saddr fe80::/10 drop comment "ownerowner"
		iifgroup 1073741824 ip daddr 127.0.0.0/8 drop comment "ownerowner"
		iifgroup 1073741824 fib saddr . iif oif missing drop comment "ownerowner"
		iifgroup != 1073741824 ip frag-off & 0x3fff != 0 ip saddr @pools4 fib saddr . iif oif missing drop comment "ownerowner"
		iifgroup != 1073741824 exthdr frag exists ip6 saddr @pools6 fib saddr . iif oif missing drop comment "ownerowner"
	}

	chain cut_out {
		type filter hook postrouting priority raw; policy accept;
		oifgroup 1073741826-1073742847 drop comment "ownerowner"
	}

	chain node_out {
		type filter hook output priority raw; policy accept;
		icmpv6 type parameter-problem @th,112,8 0 drop comment "ownerowner"
	}

	chain heads_in {
		type filter hook prerouting priority -399; policy accept;
		iifgroup != 1073741824 accept comment "ownerowner"
		@th,32,32 set @th,32,32 comment "ownerowner"
		meta l4proto tcp @th,96,32 set @th,96,32 comment "ownerowner"
		ip protocol != icmp accept comment "ownerowner"
		ip6 nexthdr tcp accept comment "ownerowner"
		ip6 nexthdr udp accept comment "ownerowner"
		ip6 nexthdr sctp accept comment "ownerowner"
		@th,160,128 set @th,160,128 comment "ownerowner"
		@th,320,128 set @th,320,128 comment "ownerowner"
	}

	chain plain_in {
		type filter hook prerouting priority raw; policy accept;
		iifgroup != 1073741824 accept comment "ownerowner"
		meta nfproto ipv4 accept comment "ownerowner"
		ip6 nexthdr 0 notrack comment "ownerowner"
		ip6 nexthdr 43 notrack comment "ownerowner"
		ip6 nexthdr 44 notrack comment "ownerowner"
		ip6 nexthdr 51 notrack comment "ownerowner"
		ip6 nexthdr 59 notrack comment "ownerowner"
		ip6 nexthdr 60 notrack comment "ownerowner"
	}

	chain new_in {
		type filter hook prerouting priority mangle; policy accept;
		ct state established accept comment "ownerowner"
		ct state new ct status & confirmed != 0 accept comment "ownerowner"
		iifgroup != 1073741824 ip saddr @pools4 fib saddr . iif oif missing drop comment "ownerowner"
		iifgroup != 1073741824 ip6 saddr @pools6 fib saddr . iif oif missing drop comment "ownerowner"
		iifgroup 1073741824 ct status & confirmed == 0 tcp flags ! syn update @tired { iif limit rate over 16384/minute burst 8192 packets } drop comment "ownerowner"
		iifgroup 1073741824 ct status & confirmed == 0 tcp flags ! syn add @resumed { iif ct count over 8192 } drop comment "ownerowner"
		iifgroup 1073741824 ct status & confirmed == 0 tcp flags ! syn accept comment "ownerowner"
		iifgroup 1073741824 ct status & confirmed == 0 meta l4proto sctp @th,96,8 != 1 update @tired { iif limit rate over 16384/minute burst 8192 packets } drop comment "ownerowner"
		iifgroup 1073741824 ct status & confirmed == 0 meta l4proto sctp @th,96,8 != 1 add @resumed { iif ct count over 8192 } drop comment "ownerowner"
		iifgroup 1073741824 ct status & confirmed == 0 meta l4proto sctp @th,96,8 != 1 accept comment "ownerowner"
		iifgroup 1073741824 ct status & confirmed == 0 iif @crowded drop comment "ownerowner"
		iifgroup 1073741824 ct status & confirmed == 0 iif @strict add @counted { iif ct count over 1024 } add @crowded { iif } update @strict { iif } drop comment "ownerowner"
		iifgroup 1073741824 ct status & confirmed == 0 iif @strict delete @strict { iif } drop comment "ownerowner"
		iifgroup 1073741824 ct status & confirmed == 0 meta l4proto tcp update @hasty { iif limit rate over 131072/minute burst 65536 packets } drop comment "ownerowner"
		iifgroup 1073741824 ct status & confirmed == 0 numgen random mod 64 0 add @counted { iif ct count over 1024 } add @crowded { iif } update @strict { iif } drop comment "ownerowner"
	}

	chain node_in {
		type filter hook input priority filter; policy accept;
		iifgroup 1073741824 icmp type destination-unreachable icmp code frag-needed drop comment "ownerowner"
		iifgroup 1073741824 icmpv6 type packet-too-big drop comment "ownerowner"
		icmp type destination-unreachable icmp code frag-needed ct state invalid,untracked drop comment "ownerowner"
		icmpv6 type packet-too-big ct state invalid,untracked drop comment "ownerowner"
		iifgroup 1073741824 meta l4proto udp ct state invalid drop comment "ownerowner"
		iifgroup 1073741824 ip6 nexthdr 0 drop comment "ownerowner"
		iifgroup 1073741824 ip6 nexthdr 43 drop comment "ownerowner"
		iifgroup 1073741824 ip6 nexthdr 44 drop comment "ownerowner"
		iifgroup 1073741824 ip6 nexthdr 51 drop comment "ownerowner"
		iifgroup 1073741824 ip6 nexthdr 59 drop comment "ownerowner"
		iifgroup 1073741824 ip6 nexthdr 60 drop comment "ownerowner"
		iifgroup 1073741824 tcp flags syn reset tcp option mptcp comment "ownerowner"
		iifgroup 1073741824 tcp flags syn tcp option mptcp exists drop comment "ownerowner"
		iifgroup 1073741824 tcp doff > 9 tcp option mptcp exists drop comment "ownerowner"
	}

	chain through {
		type filter hook forward priority filter; policy accept;
		ct state established accept comment "ownerowner"
		ct state invalid,untracked ip saddr @pools4 ip daddr != @pools4 ip daddr != @excluded4 drop comment "ownerowner"
		ct state invalid,untracked ip6 saddr @pools6 ip6 daddr != @pools6 ip6 daddr != @excluded6 drop comment "ownerowner"
		ct state related ct direction original ct status & snat == 0 meta l4proto icmp ip saddr @pools4 ip daddr != @pools4 ip daddr != @excluded4 drop comment "ownerowner"
		ct state related ct direction original ct status & snat == 0 meta l4proto ipv6-icmp ip6 saddr @pools6 ip6 daddr != @pools6 ip6 daddr != @excluded6 drop comment "ownerowner"
		iifgroup 1073741824 icmp type destination-unreachable icmp code frag-needed icmp mtu < 1280 ip saddr @pools4 ip daddr != @pools4 ip daddr != @excluded4 drop comment "ownerowner"
		oifgroup 1073741824 icmp type destination-unreachable icmp code frag-needed ct state invalid,untracked drop comment "ownerowner"
		oifgroup 1073741824 icmpv6 type packet-too-big ct state invalid,untracked drop comment "ownerowner"
		iifgroup 1073741824 oifgroup 1073741824-2147483647 ct state untracked meta nfproto ipv6 drop comment "ownerowner"
		oifgroup 1073741824-2147483647 meta l4proto udp ct state invalid drop comment "ownerowner"
		oifgroup 1073741824 ct state new ip saddr @blocked4 drop comment "ownerowner"
		oifgroup 1073741824 ct state new ip6 saddr @blocked6 drop comment "ownerowner"
		iifgroup 1073741824 ct state untracked ip6 daddr @blocked6 drop comment "ownerowner"
		iifgroup 1073741824 udp dport 53 accept comment "ownerowner"
		iifgroup 1073741824 tcp dport 53 accept comment "ownerowner"
		iifgroup 1073741824 ip daddr @blocked4 drop comment "ownerowner"
		iifgroup 1073741824 ip6 daddr @blocked6 drop comment "ownerowner"
	}

	chain nat_out {
		type nat hook postrouting priority srcnat; policy accept;
		meta l4proto tcp ip saddr @pools4 ip daddr != @pools4 ip daddr != @excluded4 masquerade to :1024-65535 fully-random comment "ownerowner"
		meta l4proto udp ip saddr @pools4 ip daddr != @pools4 ip daddr != @excluded4 masquerade to :1024-65535 fully-random comment "ownerowner"
		meta l4proto sctp ip saddr @pools4 ip daddr != @pools4 ip daddr != @excluded4 masquerade to :1024-65535 fully-random comment "ownerowner"
		ip saddr @pools4 ip daddr != @pools4 ip daddr != @excluded4 masquerade fully-random comment "ownerowner"
		meta l4proto tcp ip6 saddr @pools6 ip6 daddr != @pools6 ip6 daddr != @excluded6 masquerade to :1024-65535 fully-random comment "ownerowner"
		meta l4proto udp ip6 saddr @pools6 ip6 daddr != @pools6 ip6 daddr != @excluded6 masquerade to :1024-65535 fully-random comment "ownerowner"
		meta l4proto sctp ip6 saddr @pools6 ip6 daddr != @pools6 ip6 daddr != @excluded6 masquerade to :1024-65535 fully-random comment "ownerowner"
		ip6 saddr @pools6 ip6 daddr != @pools6 ip6 daddr != @excluded6 masquerade fully-random comment "ownerowner"
	}
}
`
	if got := r.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}

	r.Masquerade, r.Owner, r.Live = false, "", 0
	want = `table inet berth-abcdefghij {
	chain cut_in {
		type filter hook prerouting priority -450; policy accept;
		iifgroup 1073741826-1073742847 drop
	}

	chain cut_out {
		type filter hook postrouting priority raw; policy accept;
		oifgroup 1073741826-1073742847 drop
	}

	chain node_out {
		type filter hook output priority raw; policy accept;
		icmpv6 type parameter-problem @th,112,8 0 drop
	}
}
`
	if got := r.String(); got != want {
		t.Errorf("without masquerade, got:\n%s\nwant:\n%s", got, want)
	}
}
