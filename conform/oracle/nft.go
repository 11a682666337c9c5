package oracle

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// nftFamilies are the names that nft(8) gives to the NFPROTO_ numbers.
var nftFamilies = map[nft.TableFamily]string{
	nft.TableFamilyINet: "inet", nft.TableFamilyIPv4: "ip", nft.TableFamilyIPv6: "ip6",
	nft.TableFamilyARP: "arp", nft.TableFamilyNetdev: "netdev", nft.TableFamilyBridge: "bridge",
}

// nftables is `nft list ruleset`, without counters.
func nftables() ([]string, error) { return nftablesOf(func(*nft.Table) bool { return true }) }

// nftablesOf is nftables, but only for the tables for which wanted returns true. Package nft keeps only
// the text of some errors. nftablesOf gives these errors their ENOENT back, by which List recognizes
// that somebody has removed a table meanwhile.
func nftablesOf(wanted func(*nft.Table) bool) ([]string, error) {
	lines, err := listNftables(wanted)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		if before, ok := strings.CutSuffix(err.Error(), unix.ENOENT.Error()); ok {
			err = fmt.Errorf("%s%w", before, unix.ENOENT)
		}
	}
	return lines, err
}

func listNftables(wanted func(*nft.Table) bool) ([]string, error) {
	conn, err := nft.New()
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening nftables: %w", err)
	}
	tables, err := conn.ListTables()
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing nftables tables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("listing nftables chains: %w", err)
	}
	var lines []string
	for _, t := range tables {
		if !wanted(t) {
			continue
		}
		prefix := fmt.Sprintf("nft %s %s", nftFamilies[t.Family], t.Name)
		head := prefix
		if flags := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, t.Flags)); flags != 0 { // dormant, for example
			head += fmt.Sprintf(" flags %#x", flags)
		}
		lines = append(lines, head)
		for _, c := range chains {
			if c.Table.Name != t.Name || c.Table.Family != t.Family {
				continue
			}
			rules, err := chainLines(conn, c)
			if err != nil {
				return nil, fmt.Errorf("listing %s: %w", prefix, err)
			}
			for _, r := range rules {
				lines = append(lines, prefix+" chain "+r)
			}
		}
		sets, err := setLines(conn, t)
		if err != nil {
			return nil, fmt.Errorf("listing sets of %s: %w", prefix, err)
		}
		for _, s := range sets {
			lines = append(lines, prefix+" "+s)
		}
	}
	return lines, nil
}

// chainLines describes a chain, and each rule with its place in the chain.
func chainLines(conn *nft.Conn, c *nft.Chain) ([]string, error) {
	head := c.Name
	if c.Hooknum != nil {
		head += fmt.Sprintf(" type %s hook %d device %q", c.Type, *c.Hooknum, c.Device)
	}
	if c.Priority != nil {
		head += fmt.Sprintf(" priority %d", *c.Priority)
	}
	if c.Policy != nil {
		head += fmt.Sprintf(" policy %d", *c.Policy)
	}
	lines := []string{head}
	rules, err := conn.GetRules(c.Table, c)
	if err != nil {
		return nil, err
	}
	for i, r := range rules {
		var line strings.Builder
		fmt.Fprintf(&line, "%s rule %03d", c.Name, i)
		for _, e := range r.Exprs {
			text, err := exprText(e)
			if err != nil {
				return nil, err
			}
			line.WriteString(" " + text)
		}
		if comment, ok := userdata.GetString(r.UserData, userdata.TypeComment); ok {
			fmt.Fprintf(&line, " comment %q", comment)
		}
		lines = append(lines, line.String())
	}
	return lines, nil
}

// exprText describes one expression of a rule. The expressions that most rules consist of are
// described briefly, and all others with all their fields.
func exprText(e expr.Any) (string, error) {
	switch e := e.(type) {
	case *expr.Counter:
		return "Counter", nil
	case *expr.Payload:
		if e.OperationType == expr.PayloadLoad {
			return fmt.Sprintf("payload(base %d, offset %d, length %d)", e.Base, e.Offset, e.Len), nil
		}
	case *expr.Cmp:
		data := fmt.Sprintf("%x", e.Data)
		if len(e.Data) == net.IPv4len || len(e.Data) == net.IPv6len {
			data += "=" + net.IP(e.Data).String() // the data may be an address
		}
		return fmt.Sprintf("%s %s", comparisons[e.Op], data), nil
	}
	text, err := json.Marshal(e)
	return fmt.Sprintf("%s%s", strings.TrimPrefix(fmt.Sprintf("%T", e), "*expr."), text), err
}

// comparisons are the operators that the NFT_CMP_ constants stand for.
var comparisons = map[expr.CmpOp]string{
	expr.CmpOpEq: "==", expr.CmpOpNeq: "!=", expr.CmpOpLt: "<", expr.CmpOpLte: "<=", expr.CmpOpGt: ">", expr.CmpOpGte: ">=",
}

// setLines describes a table's sets and maps with their elements, and its
// other objects.
func setLines(conn *nft.Conn, t *nft.Table) ([]string, error) {
	var lines []string
	sets, err := conn.GetSets(t)
	if err != nil {
		return nil, err
	}
	for _, s := range sets {
		lines = append(lines, fmt.Sprintf("set %s key %s data %s map %t interval %t timeout %s comment %q",
			s.Name, s.KeyType.Name, s.DataType.Name, s.IsMap, s.Interval, s.Timeout, s.Comment))
		if s.Dynamic {
			continue // packets add elements to the set, and the kernel removes them, as in connection tracking
		}
		elements, err := conn.GetSetElements(s)
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			line := fmt.Sprintf("set %s element %x-%x end %t value %x comment %q", s.Name, e.Key, e.KeyEnd, e.IntervalEnd, e.Val, e.Comment)
			if e.VerdictData != nil {
				line += fmt.Sprintf(" verdict %d %s", e.VerdictData.Kind, e.VerdictData.Chain)
			}
			lines = append(lines, line)
		}
	}
	objects, err := conn.GetNamedObjects(t)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		named, ok := o.(*nft.NamedObj)
		if !ok {
			return nil, fmt.Errorf("an object of type %T", o)
		}
		lines = append(lines, fmt.Sprintf("object %d %s", named.Type, named.Name))
	}
	flowtables, err := conn.ListFlowtables(t)
	if err != nil {
		return nil, err
	}
	for _, f := range flowtables {
		lines = append(lines, fmt.Sprintf("flowtable %s devices %v", f.Name, f.Devices))
	}
	return lines, nil
}
