package oracle

import (
	"bytes"
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// compared tells `== data`, and the two comparisons of a range, behind a load.
func (r *nftTeller) compared(at int, c *expr.Cmp, l left) (text string, n int) {
	if c.Register != unix.NFT_REG_1 || !l.one {
		return "", 0
	}
	op := comparisons[c.Op] + " "
	equality := c.Op == expr.CmpOpEq || c.Op == expr.CmpOpNeq
	if c.Op == expr.CmpOpEq {
		op = ""
	}
	if !l.complete() {
		if !equality || len(c.Data) != l.size {
			return "", 0
		}
		return fmt.Sprintf("%s %s%s", l.text, op, network(c.Data, l.whole, 8*l.size)), 1
	}
	if c.Op == expr.CmpOpGte && at+1 < len(r.exprs) {
		if to, ok := r.exprs[at+1].known.(*expr.Cmp); ok && to.Op == expr.CmpOpLte && to.Register == unix.NFT_REG_1 {
			return fmt.Sprintf("%s %s-%s", l.text, l.kind.say(c.Data, r.links), l.kind.say(to.Data, r.links)), 2
		}
	}
	if bitNames[l.kind] != nil && c.Op == expr.CmpOpEq {
		op = "== " // without it, a bit among others is meant
	}
	return fmt.Sprintf("%s %s%s", l.text, op, l.kind.say(c.Data, r.links)), 1
}

// network tells a network by the first bytes of its address.
func network(first []byte, size, length int) string {
	addr, _ := netip.AddrFromSlice(append(bytes.Clone(first), make([]byte, size-len(first))...))
	return fmt.Sprintf("%s/%d", addr, length)
}

// masked tells a comparison of some bits, behind a load: networks, flags, and masks of other kinds.
func (r *nftTeller) masked(at int, b *expr.Bitwise, l left) (text string, n int) {
	whole := b.SourceRegister == unix.NFT_REG_1 && b.DestRegister == unix.NFT_REG_1 && int(b.Len) == l.size && len(b.Mask) == l.size && len(b.Xor) == l.size
	if !whole || !l.one || !l.complete() || at+1 >= len(r.exprs) {
		return "", 0
	}
	zero := make([]byte, l.size)
	flat := bytes.Equal(b.Xor, zero)
	c, ok := r.exprs[at+1].known.(*expr.Cmp)
	if !ok || c.Register != unix.NFT_REG_1 || len(c.Data) != l.size {
		return "", 0
	}
	negation := map[expr.CmpOp]string{expr.CmpOpNeq: "!= "}[c.Op]
	equality := c.Op == expr.CmpOpEq || c.Op == expr.CmpOpNeq
	if ones, ok := prefixOf(b.Mask); ok && flat && equality && (l.kind == kindAddr4 || l.kind == kindAddr6) && within(c.Data, b.Mask) {
		return fmt.Sprintf("%s %s%s", l.text, negation, network(c.Data, l.size, ones)), 2
	}
	if mask, ok := l.kind.integer(b.Mask); ok && flat && bitNames[l.kind] != nil {
		if of, named := l.kind.bits(mask); named && c.Op == expr.CmpOpNeq && bytes.Equal(c.Data, zero) {
			return l.text + " " + of, 2
		} else if value, ok := l.kind.integer(c.Data); ok && named && equality {
			if is, named := l.kind.bits(value); named {
				return fmt.Sprintf("%s %s%s / %s", l.text, negation, is, of), 2
			}
		}
	}
	say := func(data []byte) string {
		if l.kind == kindMark {
			return kindMark.say(data, nil)
		}
		return fmt.Sprintf("0x%x", data)
	}
	text = l.text + " & " + say(b.Mask)
	if !flat {
		text += " ^ " + say(b.Xor)
	}
	return fmt.Sprintf("%s %s %s", text, comparisons[c.Op], say(c.Data)), 2
}

// within reports whether a value has no bits beyond a mask.
func within(value, mask []byte) bool {
	for i := range value {
		if value[i]&^mask[i] != 0 {
			return false
		}
	}
	return true
}
