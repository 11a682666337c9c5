package oracle_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/conform/internal/trial"
	"github.com/berth-net/berth/conform/oracle"
)

// pick returns one of several.
func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// anyRule returns random expressions that belong together.
func anyRule(r *rand.Rand) (rule []expr.Any) {
	eq := func(data ...byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }
	for range 1 + r.IntN(3) {
		switch r.IntN(6) {
		case 0: // ip saddr, as nft makes it of a table of several families
			rule = append(rule, &expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, eq(2), &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}, eq(10, 0, 0, 1))
		case 1: // tcp dport
			rule = append(rule, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, eq(pick[byte](r, 6, 17)), &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, eq(0, 80))
		case 2: // ct state new
			rule = append(rule, &expr.Ct{Key: expr.CtKeySTATE, Register: 1}, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: []byte{8, 0, 0, 0}, Xor: make([]byte, 4)},
				&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)})
		case 3: // ct state == new
			rule = append(rule, &expr.Ct{Key: expr.CtKeySTATE, Register: 1}, eq(8, 0, 0, 0))
		default:
			rule = append(rule, anyStatement(r)...)
		}
	}
	return rule
}

// changed returns expressions of which one is lost, there twice, exchanged with the next, or has another value: rules that are told in almost the
// same words.
func changed(r *rand.Rand, rule []expr.Any) []expr.Any {
	at := r.IntN(len(rule))
	switch r.IntN(5) {
	case 0:
		return slices.Delete(rule, at, at+1)
	case 1:
		return slices.Insert(rule, at, rule[at:min(at+2, len(rule))]...)
	case 2:
		next := (at + 1) % len(rule)
		rule[at], rule[next] = rule[next], rule[at]
	case 3:
		return slices.Insert(rule, at, anyStatement(r)...)
	}
	switch e := rule[at].(type) {
	case *expr.Cmp:
		if e.Op = pick(r, expr.CmpOpEq, expr.CmpOpNeq, expr.CmpOpLte); r.IntN(2) == 0 {
			e.Data[r.IntN(len(e.Data))] ^= 8
		}
	case *expr.Bitwise:
		e.Mask[r.IntN(len(e.Mask))] ^= 1
	case *expr.Payload:
		e.Offset += pick[uint32](r, 1, 4)
	case *expr.Meta:
		e.Register = 2
	}
	return rule
}

func anyStatement(r *rand.Rand) []expr.Any {
	register := pick[uint32](r, 1, 1, 1, 1, 2)
	load, size := anyLoad(r, register)
	data := make([]byte, size)
	data[r.IntN(size)] = pick[byte](r, 1, 2, 6, 10)
	op := pick(r, expr.CmpOpEq, expr.CmpOpEq, expr.CmpOpNeq, expr.CmpOpGte)
	cmp := &expr.Cmp{Op: op, Register: register, Data: data}
	switch r.IntN(9) {
	case 0, 1, 2:
		return []expr.Any{load, cmp}
	case 3:
		mask := make([]byte, size)
		mask[0], mask[size-1] = 0xf0, mask[size-1]|0x0f
		return []expr.Any{load, &expr.Bitwise{SourceRegister: register, DestRegister: pick[uint32](r, register, register, 3), Len: uint32(size), Mask: mask, Xor: make([]byte, size)}, cmp}
	case 4:
		return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpGte, Register: register, Data: data}, &expr.Cmp{Op: expr.CmpOpLte, Register: register, Data: data}}
	case 5:
		return []expr.Any{load, &expr.Range{Op: pick(r, expr.CmpOpEq, expr.CmpOpNeq), Register: register, FromData: make([]byte, size), ToData: data}}
	case 6:
		mark := []expr.Any{&expr.Immediate{Register: register, Data: []byte{1, 0, 0, pick[byte](r, 0, 1)}}, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: register}}
		return pick(r, mark, []expr.Any{load, mark[1]})
	case 7:
		return []expr.Any{pick[expr.Any](r, &expr.Counter{}, &expr.Notrack{}, &expr.Reject{Type: pick[uint32](r, 0, 2), Code: pick[uint8](r, 1, 3)},
			&expr.Limit{Type: pick(r, expr.LimitTypePkts, expr.LimitTypePktBytes), Rate: 1024, Unit: pick(r, expr.LimitTimeSecond, expr.LimitTimeHour), Over: pick(r, true, false), Burst: pick[uint32](r, 5, 6)},
			&expr.Log{Key: 1 << unix.NFTA_LOG_PREFIX, Data: []byte(pick(r, "a", "b"))}, &expr.Quota{Bytes: 5, Over: pick(r, true, false)})}
	}
	return anyTranslation(r, register)
}

// anyLoad returns a load into a register, and how many bytes it loads.
func anyLoad(r *rand.Rand, register uint32) (expr.Any, int) {
	if r.IntN(3) == 0 {
		p := pick(r, [3]uint32{0, 6, 6}, [3]uint32{0, 12, 2}, [3]uint32{1, 12, 4}, [3]uint32{1, 12, 3}, [3]uint32{1, 16, 1}, [3]uint32{1, 9, 1}, [3]uint32{1, 8, 16},
			[3]uint32{2, 0, 2}, [3]uint32{2, 2, 2}, [3]uint32{2, 0, 1}, [3]uint32{2, 13, 1}, [3]uint32{2, 4, 4})
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBase(p[0]), Offset: p[1], Len: p[2]}, int(p[2])
	}
	switch r.IntN(6) {
	case 0:
		return &expr.Ct{Key: pick(r, expr.CtKeySTATE, expr.CtKeySTATUS, expr.CtKeyMARK), Register: register}, 4
	case 1:
		return &expr.Fib{Register: register, ResultADDRTYPE: true, FlagDADDR: true, FlagIIF: pick(r, true, false)}, 4
	case 2:
		return &expr.Meta{Key: pick(r, expr.MetaKeyMARK, expr.MetaKeyIIF, expr.MetaKeyOIF, expr.MetaKeySKUID), Register: register}, 4
	case 3:
		return &expr.Meta{Key: pick(r, expr.MetaKeyIIFTYPE, expr.MetaKeyPROTOCOL), Register: register}, 2
	}
	return &expr.Meta{Key: pick(r, expr.MetaKeyL4PROTO, expr.MetaKeyL4PROTO, expr.MetaKeyNFPROTO), Register: register}, 1
}

func anyTranslation(r *rand.Rand, register uint32) []expr.Any {
	addr, port := &expr.Immediate{Register: register, Data: []byte{10, 0, 0, pick[byte](r, 1, 2)}}, &expr.Immediate{Register: 2, Data: []byte{0, pick[byte](r, 80, 81)}}
	to := &expr.NAT{Type: pick(r, expr.NATTypeDestNAT, expr.NATTypeSourceNAT), Family: unix.NFPROTO_IPV4, RegAddrMin: register, Random: pick(r, true, false)}
	switch r.IntN(4) {
	case 0:
		return []expr.Any{&expr.Masq{Random: pick(r, true, false), Persistent: pick(r, true, false)}}
	case 1:
		return []expr.Any{port, &expr.Redir{RegisterProtoMin: 2}}
	case 2:
		to.RegProtoMin = 2
		return []expr.Any{addr, port, to}
	}
	return []expr.Any{addr, to}
}

// Two rules that the kernel keeps as different ones are never told in the same words.
func TestNftWordsTellRulesApart(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, family := range []nft.TableFamily{nft.TableFamilyINet, nft.TableFamilyIPv4, nft.TableFamilyBridge} {
		table := &nft.Table{Family: family, Name: "random"}
		var words, bytes []string
		taken := 0
		trial.OnNode(t, func() error {
			conn, err := nft.New(nft.AsLasting())
			if err != nil {
				return err
			}
			defer conn.CloseLasting()
			chain := conn.AddChain(&nft.Chain{Table: conn.AddTable(table), Name: "all"})
			if err := conn.Flush(); err != nil {
				return err
			}
			for round := 0; round < 60 || taken < 100 && round < 10_000; round++ {
				again := r.Uint64()
				for i := range 8 {
					rule := anyRule(rand.New(rand.NewPCG(again, 0)))
					if i > 0 {
						rule = changed(r, rule)
					}
					conn.AddRule(&nft.Rule{Table: table, Chain: chain, Exprs: rule})
					if conn.Flush() == nil { // the kernel refuses some
						taken++
					}
				}
			}
			words, bytes, err = oracle.TellRules(table)
			return err
		})
		if len(words) != taken || taken < 100 {
			t.Errorf("family %d: the kernel took %d rules, and %d are told", family, taken, len(words))
		}
		told := map[string]string{}
		for i, w := range words {
			if other := told[w]; other != "" && other != bytes[i] {
				t.Errorf("family %d: these are both told as %q:\n%s\n%s", family, w, other, bytes[i])
			}
			told[w] = bytes[i]
		}
	}
}
