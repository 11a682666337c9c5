package oracle

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// nftSet is a set or a map with its elements in nft's words.
type nftSet struct {
	*nft.Set
	elements []string // nil, if packets add and the kernel removes them
}

// setsOf reads the sets of a table. An element that packets add to a dynamic set is left out, as in connection tracking.
func setsOf(conn *nft.Conn, t *nft.Table, links map[int]string) ([]nftSet, error) {
	sets, err := conn.GetSets(t)
	if err != nil {
		return nil, err
	}
	var all []nftSet
	for _, s := range sets {
		one := nftSet{Set: s}
		if s.IsMap && s.KeyType.Name == nft.TypeVerdict.Name {
			if err := one.mendVerdicts(); err != nil {
				return nil, err
			}
		}
		if !s.Dynamic {
			elements, err := conn.GetSetElements(s)
			if err != nil {
				return nil, err
			}
			one.elements = one.tell(elements, links)
		}
		all = append(all, one)
	}
	return all, nil
}

// mendVerdicts reads the type of a verdict map's keys, which package nft mistakes for that of its values.
func (s *nftSet) mendVerdicts() error {
	request := append([]byte{byte(s.Table.Family), 0, 0, 0}, nl.NewRtAttr(unix.NFTA_SET_TABLE, nl.ZeroTerminated(s.Table.Name)).Serialize()...)
	all, err := dump(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSET, request, sizeofNfgenmsg)
	if err != nil {
		return fmt.Errorf("listing sets: %w", err)
	}
	s.DataType = nft.TypeVerdict
	for _, d := range all {
		if text(d.attrs[unix.NFTA_SET_NAME]) == s.Name {
			s.KeyType.Name = typeName(networkNumber(d.attrs[unix.NFTA_SET_KEY_TYPE]))
		}
	}
	return nil
}

// typeName returns nft's name of a type's number, which for a concatenation has 6 bits for each part.
func typeName(number uint32) string {
	var parts []string
	for ; number != 0; number >>= 6 {
		name := fmt.Sprintf("type %d", number&0x3f)
		for _, t := range keyTypes {
			if t.GetNFTMagic() == number&0x3f {
				name = t.Name
			}
		}
		parts = append([]string{name}, parts...)
	}
	return strings.Join(parts, " . ")
}

// keyTypes are the types of the keys that verdict maps have.
var keyTypes = []nft.SetDatatype{
	nft.TypeIPAddr, nft.TypeIP6Addr, nft.TypeEtherAddr, nft.TypeEtherType, nft.TypeInetProto, nft.TypeInetService, nft.TypeICMPType, nft.TypeICMP6Type,
	nft.TypeMark, nft.TypeIFIndex, nft.TypeIFName, nft.TypeCTState, nft.TypeCTStatus, nft.TypeNFProto, nft.TypePktType, nft.TypeTCPFlag,
}

// head tells what a set is: `set blocked { type ipv4_addr; flags interval; }`.
func (s nftSet) head() string {
	what, of := "set", s.KeyType.Name
	if s.IsMap {
		what, of = "map", of+" : "+s.DataType.Name
	}
	text := fmt.Sprintf("%s %s { type %s;", what, s.Name, of)
	if s.Size > 0 {
		text += fmt.Sprintf(" size %d;", s.Size)
	}
	var flags []string
	for _, f := range []struct {
		on   bool
		name string
	}{{s.Constant, "constant"}, {s.Dynamic, "dynamic"}, {s.Interval, "interval"}, {s.HasTimeout, "timeout"}} {
		if f.on {
			flags = append(flags, f.name)
		}
	}
	if len(flags) > 0 {
		text += " flags " + strings.Join(flags, ",") + ";"
	}
	if s.Timeout > 0 {
		text += " timeout " + seconds(s.Timeout) + ";"
	}
	if s.AutoMerge {
		text += " auto-merge;"
	}
	if s.Counter {
		text += " counter;"
	}
	if s.Comment != "" {
		text += fmt.Sprintf(" comment %q;", s.Comment)
	}
	return text + " }"
}

// seconds tells a time as nft(8) does: 1m30s, and 1m of a whole minute.
func seconds(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// tell tells elements. The kernel keeps an interval as two elements, of which the second is the first value behind it.
func (s nftSet) tell(elements []nft.SetElement, links map[int]string) []string {
	paired := s.Interval && !s.Concatenation && !slices.ContainsFunc(elements, func(e nft.SetElement) bool { return len(e.KeyEnd) > 0 })
	slices.SortFunc(elements, func(a, b nft.SetElement) int {
		if order := bytes.Compare(a.Key, b.Key); order != 0 || a.IntervalEnd == b.IntervalEnd {
			return order
		}
		if a.IntervalEnd {
			return -1
		}
		return 1
	})
	all := []string{}
	for i, e := range elements {
		var key string
		switch {
		case !paired && len(e.KeyEnd) > 0 && !bytes.Equal(e.Key, e.KeyEnd):
			key = sayFields(s.KeyType.Name, e.Key, e.KeyEnd, links)
		case !paired:
			key = sayFields(s.KeyType.Name, e.Key, e.Key, links)
		case e.IntervalEnd:
			continue
		default:
			last := bytes.Repeat([]byte{0xff}, len(e.Key))
			if i+1 < len(elements) {
				last = before(elements[i+1].Key)
			}
			key = sayFields(s.KeyType.Name, e.Key, last, links)
		}
		if e.Timeout > 0 {
			key += " timeout " + seconds(e.Timeout)
		}
		if e.Comment != "" {
			key += fmt.Sprintf(" comment %q", e.Comment)
		}
		if s.IsMap {
			key += " : " + s.value(e, links)
		}
		all = append(all, key)
	}
	return all
}

// value tells what a map has for a key.
func (s nftSet) value(e nft.SetElement, links map[int]string) string {
	v := e.VerdictData
	if v == nil && s.DataType.Name == nft.TypeVerdict.Name { // a map whose type is mended
		attrs, _ := attributes(e.Val)
		v = &expr.Verdict{Kind: expr.VerdictKind(int32(networkNumber(attrs[unix.NFTA_VERDICT_CODE]))), Chain: text(attrs[unix.NFTA_VERDICT_CHAIN])}
	}
	if v != nil {
		if text := verdict(v); text != "" {
			return text
		}
		return fmt.Sprintf("verdict %d %s", v.Kind, v.Chain)
	}
	return sayFields(s.DataType.Name, e.Val, e.Val, links)
}
