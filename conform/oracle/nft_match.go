package oracle

import (
	"fmt"
	"strings"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// nftTeller tells the expressions of a rule in the words of `nft list ruleset`, and those that it does not know in words of its own. Two rules that
// do different things are never told in the same words.
type nftTeller struct {
	family nft.TableFamily
	exprs  []expression
	sets   map[string]string // of anonymous sets: what they contain, by their names
	links  map[int]string    // names of links, by index
}

// tell returns the words of a rule.
func (r *nftTeller) tell() string {
	var words []string
	p := r.known()
	for at := 0; at < len(r.exprs); {
		if to, then := r.implied(at, p); to > at {
			at, p = to, then
		}
		text, n := r.statement(at, p)
		if n == 0 {
			text, n = r.exprs[at].raw(), 1
		} else if of, name := r.protocol(at); of != noLayer {
			p[of] = name
		}
		words = append(words, text)
		at += n
	}
	return strings.Join(words, " ")
}

// implied looks for comparisons with protocols that nft(8) leaves out, because the statement behind them says the protocols. It returns where that
// statement begins, and what the rule knows there.
func (r *nftTeller) implied(at int, p protocols) (to int, then protocols) {
	var left []layer
	last := noLayer
	to, then = at, p
	for {
		of, name := r.protocol(to)
		if of <= last || p[of] != "" {
			break
		}
		then[of], last = name, of
		left = append(left, of)
		to += 2
	}
	if len(left) == 0 {
		return at, p
	}
	_, n := r.statement(to, then)
	said := map[layer]bool{}
	for i := to; i < to+n; i++ {
		l, ok := r.load(i, then)
		if !ok {
			break
		}
		said[l.needs] = true
		if of := carriers[then[transportLayer]]; l.needs == transportLayer && of != "" {
			if then[netLayer] != of {
				return at, p
			}
			said[netLayer] = true
		}
	}
	for _, of := range left {
		if !said[of] {
			return at, p
		}
	}
	return to, then
}

// carriers are the protocols below those that have only one.
var carriers = map[string]string{"icmp": "ip", "icmpv6": "ip6"}

// protocol reads a comparison with a layer's protocol, such as meta l4proto tcp, which is two expressions long.
func (r *nftTeller) protocol(at int) (layer, string) {
	l, ok := r.load(at, protocols{})
	if !ok || l.register != unix.NFT_REG_1 || at+1 >= len(r.exprs) {
		return noLayer, ""
	}
	c, ok := r.exprs[at+1].known.(*expr.Cmp)
	if !ok || c.Op != expr.CmpOpEq || c.Register != l.register || len(c.Data) != l.size {
		return noLayer, ""
	}
	value := l.kind.say(c.Data, nil)
	switch {
	case l.text == "iiftype" && value == "ether":
		return linkLayer, "ether"
	case l.text == "meta nfproto" && r.family == nft.TableFamilyINet && nftNames[kindNf][uint64(c.Data[0])] != "":
		return netLayer, map[string]string{"ipv4": "ip", "ipv6": "ip6"}[value]
	case l.text == "meta protocol" && (r.family == nft.TableFamilyNetdev || r.family == nft.TableFamilyBridge) && (value == "ip" || value == "ip6"):
		return netLayer, value
	case l.text == "meta l4proto" && value == "ipv6-icmp":
		return transportLayer, "icmpv6"
	case l.text == "meta l4proto" && fields[value] != nil:
		return transportLayer, value
	}
	return noLayer, ""
}

// match tells a comparison: something that is loaded, and what it is compared with, or looked up in.
func (r *nftTeller) match(at int, p protocols) (text string, n int) {
	left, n := r.left(at, p)
	if n == 0 || at+n >= len(r.exprs) {
		return "", 0
	}
	switch e := r.exprs[at+n].known.(type) {
	case *expr.Bitwise:
		if text, more := r.masked(at+n, e, left); more > 0 {
			return text, n + more
		}
	case *expr.Cmp:
		if text, more := r.compared(at+n, e, left); more > 0 {
			return text, n + more
		}
	case *expr.Range:
		if e.Register == unix.NFT_REG_1 && e.Op == expr.CmpOpNeq && left.one && left.complete() {
			return fmt.Sprintf("%s != %s-%s", left.text, left.kind.say(e.FromData, r.links), left.kind.say(e.ToData, r.links)), n + 1
		}
	case *expr.Lookup:
		if text, ok := r.lookup(e, left.text); ok && left.complete() && (!e.IsDestRegSet || e.DestRegister == unix.NFT_REG_VERDICT) {
			return text, n + 1
		}
	case *expr.Dynset:
		set := map[uint32]string{unix.NFT_DYNSET_OP_ADD: "add", unix.NFT_DYNSET_OP_UPDATE: "update", 2: "delete"}[e.Operation]
		if set != "" && e.SrcRegKey == unix.NFT_REG_1 && e.SrcRegData == 0 && !e.Invert && len(e.Exprs) == 0 && left.complete() && dynsetWhole(r.exprs[at+n]) {
			timeout := ""
			if e.Timeout > 0 {
				timeout = " timeout " + e.Timeout.String()
			}
			return fmt.Sprintf("%s @%s { %s%s }", set, e.SetName, left.text, timeout), n + 1
		}
	case *expr.Meta, *expr.Ct:
		if key, ok := r.setter(at + n); ok && left.one && left.complete() {
			return key + " set " + left.text, n + 1
		}
	}
	return "", 0
}

// dynsetWhole reports whether package nft reads all attributes of an expression.
func dynsetWhole(e expression) bool {
	flags, _ := e.number(unix.NFTA_DYNSET_FLAGS)
	return flags == 0 && e.attrs[unix.NFTA_DYNSET_EXPR] == nil
}

// left is the left side of a comparison: one thing that is loaded, or several (`ip daddr . tcp dport`).
type left struct {
	loaded
	one bool
}

// complete reports whether no part of a field is loaded alone.
func (l left) complete() bool { return l.whole == 0 || l.whole == l.size }

func (r *nftTeller) left(at int, p protocols) (l left, n int) {
	first, ok := r.load(at, p)
	if !ok || first.register != unix.NFT_REG_1 {
		return l, 0
	}
	l, n = left{first, true}, 1
	// The kernel names each fourth of its registers of 4 bytes by the number of a register of 16 bytes (NFT_REG_1), and the others by NFT_REG32_00.
	words := (first.size + 3) / 4
	for {
		next, ok := r.load(at+n, p)
		register := uint32(unix.NFT_REG32_00 + words)
		if words%4 == 0 {
			register = uint32(unix.NFT_REG_1 + words/4)
		}
		if !ok || next.register != register || next.whole != 0 && next.whole != next.size || !l.complete() {
			return l, n
		}
		l.text, l.one = l.text+" . "+next.text, false
		words += (next.size + 3) / 4
		n++
	}
}

// lookup tells that something is looked up in a set or in a map.
func (r *nftTeller) lookup(e *expr.Lookup, of string) (string, bool) {
	set := "@" + e.SetName
	if content, ok := r.sets[e.SetName]; ok {
		set = content
	}
	switch {
	case e.SourceRegister != unix.NFT_REG_1:
		return "", false
	case e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT:
		return of + " vmap " + set, !e.Invert
	case e.IsDestRegSet:
		return of + " map " + set, !e.Invert
	case e.Invert:
		return of + " != " + set, true
	}
	return of + " " + set, true
}

// setter reads an expression that sets a mark and the like to what is in the first register.
func (r *nftTeller) setter(at int) (key string, ok bool) {
	e := r.exprs[at]
	var register uint32
	switch known := e.known.(type) {
	case *expr.Meta:
		k, there := metaKeys[uint32(known.Key)]
		register, ok, key = known.Register, there && known.SourceRegister, k.text
	case *expr.Ct:
		number, _ := e.number(unix.NFTA_CT_KEY)
		k, there := ctKeys[number]
		_, direction := e.number(unix.NFTA_CT_DIRECTION)
		register, ok = e.number(unix.NFTA_CT_SREG)
		key, ok = "ct "+k.text, ok && there && !direction
	}
	return key, ok && register == unix.NFT_REG_1
}
