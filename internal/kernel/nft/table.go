package nft

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// table is an nftables table, as a ruleset wants it or as the kernel has it.
type table struct {
	family byte // NFPROTO_BRIDGE, or 0 for inet
	name   string
	flags  uint32 // NFT_TABLE_F_*; a dormant table does nothing
	others int    // how many objects and flowtables are in it; Berth makes none
	sets   []set
	chains []chain
	bridge *table // the table of family bridge that goes with a table of family inet, under the same name; nil: there is none
}

// both returns the table, and the one of family bridge that goes with it.
func (t table) both() []table {
	if t.bridge == nil {
		return []table{t}
	}
	return []table{t, *t.bridge}
}

// word is nft's word for the table's family.
func (t table) word() string {
	if t.family == unix.NFPROTO_BRIDGE {
		return "bridge"
	}
	return "inet"
}

// set is an interval set of addresses; or, if it is dynamic, a set of links or flows that packets
// fill; or, if it has keys, a set or map of host ports. Elements that packets put into a set are no
// part of the ruleset.
type set struct {
	family byte // of the table that has it: NFPROTO_BRIDGE, or 0 for inet
	name   string
	of     nftables.SetDatatype
	ranges []span // sorted, apart from each other

	keys    concat  // the parts of the concatenated type; nil: neither a set nor a map of host ports
	values  concat  // nil: not a map
	entries []entry // in any order, each key once

	dynamic bool
	timeout time.Duration // how long the kernel keeps an element; 0: as long as the element counts something
	foreign string        // not empty: what shows that Berth did not make the set
}

// room is how many links or flows a dynamic set has room for, nft(8)'s default. The rules count
// nothing for a link that finds no room, and let no answer pass in a flow that finds none (see asked).
const room = 65535

// family has what differs between IPv4 and IPv6 in sets and rules.
type family struct {
	datatype nftables.SetDatatype
	proto    byte   // NFPROTO_*
	suffix   string // the end of the names of the family's sets
	word     string // nft's word before saddr and daddr
	saddr    uint32 // offsets in the network header, in bytes
	daddr    uint32
	icmp     byte   // IPPROTO_*
	icmpWord string // nft's word for icmp
}

var (
	ipv4 = family{nftables.TypeIPAddr, unix.NFPROTO_IPV4, "4", "ip", 12, 16, unix.IPPROTO_ICMP, "icmp"}
	ipv6 = family{nftables.TypeIP6Addr, unix.NFPROTO_IPV6, "6", "ip6", 8, 24, unix.IPPROTO_ICMPV6, "ipv6-icmp"}
)

// chain is a base chain with policy accept.
type chain struct {
	name     string
	typ      nftables.ChainType
	hook     hook
	priority priority
	rules    []rule
	foreign  string // not empty: what shows that Berth did not make the chain, such as another policy
}

type (
	hook     nftables.ChainHook
	priority nftables.ChainPriority
)

const (
	hookPrerouting  hook = unix.NF_INET_PRE_ROUTING
	hookInput       hook = unix.NF_INET_LOCAL_IN
	hookForward     hook = unix.NF_INET_FORWARD
	hookOutput      hook = unix.NF_INET_LOCAL_OUT
	hookPostrouting hook = unix.NF_INET_POST_ROUTING

	priorityFirst priority = -450 // NF_IP_PRI_RAW_BEFORE_DEFRAG
	// Right behind defragmentation (NF_IP_PRI_CONNTRACK_DEFRAG), and before all else that reads
	// what is in a packet.
	priorityDefragged priority = -399

	priorityRaw    priority = -300
	priorityMangle priority = -150
	priorityDstnat priority = -100 // nft names this priority in prerouting alone
	priorityFilter priority = 0
	prioritySrcnat priority = 100
)

func (h hook) String() string {
	names := [...]string{"prerouting", "input", "forward", "output", "postrouting"}
	if int(h) < len(names) {
		return names[h]
	}
	return fmt.Sprint(uint32(h))
}

func (p priority) String() string {
	switch p {
	case priorityRaw:
		return "raw"
	case priorityMangle:
		return "mangle"
	case priorityFilter:
		return "filter"
	case prioritySrcnat:
		return "srcnat"
	}
	return fmt.Sprint(int32(p))
}

// head returns the chain's first line in nft's words.
func (c chain) head() string {
	s := fmt.Sprintf("type %s hook %s priority %s; policy accept;", c.typ, c.hook, c.priority)
	if c.foreign != "" {
		s += " " + c.foreign
	}
	return s
}

// like reports whether two chains are the same, apart from their rules.
func (c chain) like(other chain) bool { return c.name == other.name && c.head() == other.head() }

// like reports whether two sets are the same, apart from their members.
func (s set) like(other set) bool { return s.name == other.name && s.head() == other.head() }

// head returns a set's properties in nft's words, a line each.
func (s set) head() string {
	lines := "\t\ttype " + s.of.Name + "\n"
	switch {
	case len(s.values) > 0:
		lines = fmt.Sprintf("\t\ttype %s : %s\n", s.of.Name, s.values.datatype().Name)
	case len(s.keys) > 0:
	case s.dynamic && s.timeout > 0:
		lines += fmt.Sprintf("\t\tsize %d\n\t\tflags dynamic,timeout\n\t\ttimeout %s\n", room, s.timeout)
	case s.dynamic:
		lines += fmt.Sprintf("\t\tsize %d\n\t\tflags dynamic\n", room)
	default:
		lines += "\t\tflags interval\n"
	}
	if s.foreign != "" {
		lines += "\t\t" + s.foreign + "\n"
	}
	return lines
}

// show shows an element as nft does.
func (s set) show(e entry) string {
	text := s.keys.text(e.key)
	if e.comment != "" {
		text += fmt.Sprintf(" comment %q", e.comment)
	}
	if len(s.values) > 0 {
		text += " : " + s.values.text(e.value)
	}
	return text
}

// rule is what a chain does with a packet.
type rule struct {
	text    string // in nft's words; for a rule that the package read from the kernel, only the names of its expressions
	exprs   []expr.Any
	comment string
}

func (r rule) String() string {
	if r.comment == "" {
		return r.text
	}
	return fmt.Sprintf("%s comment %q", r.text, r.comment)
}

// String shows the table as `nft list table` does.
func (t table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %s %s {\n", t.word(), t.name)
	gap := ""
	for _, s := range t.sets {
		word := "set"
		if len(s.values) > 0 {
			word = "map"
		}
		fmt.Fprintf(&b, "%s\t%s %s {\n%s", gap, word, s.name, s.head())
		if len(s.ranges)+len(s.entries) > 0 {
			var members []string
			for _, r := range s.ranges {
				members = append(members, r.String())
			}
			for _, e := range s.entries {
				members = append(members, s.show(e))
			}
			fmt.Fprintf(&b, "\t\telements = { %s }\n", strings.Join(members, ",\n\t\t\t     "))
		}
		b.WriteString("\t}\n")
		gap = "\n"
	}
	for _, c := range t.chains {
		fmt.Fprintf(&b, "%s\tchain %s {\n\t\t%s\n", gap, c.name, c.head())
		for _, r := range c.rules {
			fmt.Fprintf(&b, "\t\t%s\n", r)
		}
		b.WriteString("\t}\n")
		gap = "\n"
	}
	b.WriteString("}\n")
	if t.bridge != nil {
		b.WriteString("\n" + t.bridge.String())
	}
	return b.String()
}
