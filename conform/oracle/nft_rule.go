package oracle

import (
	"encoding/json"
	"fmt"
	"strings"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// nftRule is a rule as the kernel dumps it.
type nftRule struct {
	chain string
	exprs []expression
	note  []byte // the user's data, in which nft(8) keeps the comment
}

// expression is one expression of a rule. Package nft knows fewer kinds of expressions than the kernel has, and reads not all attributes of
// those that it knows.
type expression struct {
	name  string
	data  []byte
	attrs map[uint16][]byte
	known expr.Any // nil: package nft cannot read it
}

// sizeofNfgenmsg is the size of the header of netfilter's messages: family, version, and a number of two bytes (linux/netfilter/nfnetlink.h).
const sizeofNfgenmsg = 4

// rulesOf returns the rules of a table, in the order of each chain.
func rulesOf(t *nft.Table) (rules []nftRule, err error) {
	request := append([]byte{byte(t.Family), 0, 0, 0}, nl.NewRtAttr(unix.NFTA_RULE_TABLE, nl.ZeroTerminated(t.Name)).Serialize()...)
	all, err := dump(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, request, sizeofNfgenmsg)
	if err != nil {
		return nil, fmt.Errorf("listing rules: %w", err)
	}
	for _, d := range all {
		r := nftRule{chain: text(d.attrs[unix.NFTA_RULE_CHAIN]), note: d.attrs[unix.NFTA_RULE_USERDATA]}
		list, err := nl.ParseRouteAttr(d.attrs[unix.NFTA_RULE_EXPRESSIONS])
		if err != nil {
			return nil, fmt.Errorf("reading a rule of %s: %w", r.chain, err)
		}
		for _, one := range list {
			attrs, err := attributes(one.Value)
			if err != nil {
				return nil, fmt.Errorf("reading a rule of %s: %w", r.chain, err)
			}
			r.exprs = append(r.exprs, readExpression(byte(t.Family), text(attrs[unix.NFTA_EXPR_NAME]), attrs[unix.NFTA_EXPR_DATA]))
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// text is a string of the kernel, which ends with a zero.
func text(raw []byte) string { return strings.TrimRight(string(raw), "\x00") }

// readers of expressions, by the kernel's names.
var newExpression = map[string]func() expr.Any{
	"bitwise": func() expr.Any { return &expr.Bitwise{} }, "cmp": func() expr.Any { return &expr.Cmp{} },
	"connlimit": func() expr.Any { return &expr.Connlimit{} }, "counter": func() expr.Any { return &expr.Counter{} },
	"ct": func() expr.Any { return &expr.Ct{} }, "dynset": func() expr.Any { return &expr.Dynset{} },
	"exthdr": func() expr.Any { return &expr.Exthdr{} }, "fib": func() expr.Any { return &expr.Fib{} },
	"flow_offload": func() expr.Any { return &expr.FlowOffload{} }, "hash": func() expr.Any { return &expr.Hash{} },
	"immediate": func() expr.Any { return &expr.Immediate{} }, "limit": func() expr.Any { return &expr.Limit{} },
	"log": func() expr.Any { return &expr.Log{} }, "lookup": func() expr.Any { return &expr.Lookup{} },
	"masq": func() expr.Any { return &expr.Masq{} }, "match": func() expr.Any { return &expr.Match{} },
	"meta": func() expr.Any { return &expr.Meta{} }, "nat": func() expr.Any { return &expr.NAT{} },
	"notrack": func() expr.Any { return &expr.Notrack{} }, "numgen": func() expr.Any { return &expr.Numgen{} },
	"objref": func() expr.Any { return &expr.Objref{} }, "payload": func() expr.Any { return &expr.Payload{} },
	"queue": func() expr.Any { return &expr.Queue{} }, "quota": func() expr.Any { return &expr.Quota{} },
	"range": func() expr.Any { return &expr.Range{} }, "redir": func() expr.Any { return &expr.Redir{} },
	"reject": func() expr.Any { return &expr.Reject{} }, "synproxy": func() expr.Any { return &expr.SynProxy{} },
	"target": func() expr.Any { return &expr.Target{} },
}

func readExpression(family byte, name string, data []byte) expression {
	e := expression{name: name, data: data}
	e.attrs, _ = attributes(data) // none, if it has none
	if make := newExpression[name]; make != nil {
		if e.known = make(); expr.Unmarshal(family, data, e.known) != nil {
			e.known = nil
		}
	}
	if i, ok := e.known.(*expr.Immediate); ok && i.Register == unix.NFT_REG_VERDICT {
		v := &expr.Verdict{}
		if e.known = v; expr.Unmarshal(family, data, v) != nil {
			e.known = nil
		}
	}
	return e
}

// number returns an attribute that is an integer in the network's order, and whether the expression has it.
func (e expression) number(attr uint16) (n uint32, ok bool) {
	raw, ok := e.attrs[attr]
	return networkNumber(raw), ok
}

// networkNumber reads an integer in the network's order, as nftables has them in attributes.
func networkNumber(raw []byte) (n uint32) {
	for _, b := range raw {
		n = n<<8 | uint32(b)
	}
	return n
}

// raw tells an expression in words of its own: what nftRule cannot tell in nft's. It tells all that package nft reads; of expressions that this
// package reads only in part, or not at all, it tells the attributes. Counts of packets are left out, because they change.
func (e expression) raw() string {
	switch known := e.known.(type) {
	case *expr.Payload:
		if known.OperationType == expr.PayloadLoad {
			return fmt.Sprintf("payload(base %d, offset %d, length %d, register %d)", known.Base, known.Offset, known.Len, known.DestRegister)
		}
	case *expr.Cmp:
		return fmt.Sprintf("register %d %s %x", known.Register, comparisons[known.Op], known.Data)
	case *expr.Quota:
		return fmt.Sprintf("Quota{%d over %t}", known.Bytes, known.Over)
	case *expr.Ct, *expr.Bitwise, *expr.Exthdr, nil:
		if e.name == "last" { // when the last packet came
			return e.name
		}
		return fmt.Sprintf("%s{%x}", e.name, e.data)
	}
	text, err := json.Marshal(e.known)
	if err != nil {
		return fmt.Sprintf("%s{%x}", e.name, e.data)
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", e.known), "*expr.") + string(text)
}

// comparisons are the operators that the NFT_CMP_ constants stand for.
var comparisons = map[expr.CmpOp]string{
	expr.CmpOpEq: "==", expr.CmpOpNeq: "!=", expr.CmpOpLt: "<", expr.CmpOpLte: "<=", expr.CmpOpGt: ">", expr.CmpOpGte: ">=",
}

// comment tells the user's data of a rule: a comment or, if it is something else, its bytes.
func (r nftRule) comment() string {
	switch n := len(r.note); {
	case n == 0:
		return ""
	case n > 2 && r.note[0] == 0 && int(r.note[1]) == n-2 && r.note[n-1] == 0 && !strings.Contains(string(r.note[2:n-1]), "\x00"):
		return fmt.Sprintf(" comment %q", r.note[2:n-1])
	}
	return fmt.Sprintf(" userdata 0x%x", r.note)
}
