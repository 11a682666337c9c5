package oracle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	nft "github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// nftFamilies are the names that nft(8) gives to the NFPROTO_ numbers.
var nftFamilies = map[nft.TableFamily]string{
	nft.TableFamilyINet: "inet", nft.TableFamilyIPv4: "ip", nft.TableFamilyIPv6: "ip6",
	nft.TableFamilyARP: "arp", nft.TableFamilyNetdev: "netdev", nft.TableFamilyBridge: "bridge",
}

// nftables is `nft -y list ruleset`, without counts.
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
		own := slices.DeleteFunc(slices.Clone(chains), func(c *nft.Chain) bool { return c.Table.Name != t.Name || c.Table.Family != t.Family })
		told, err := tableLines(conn, t, own)
		if err != nil {
			return nil, fmt.Errorf("listing table %s %s: %w", nftFamilies[t.Family], t.Name, err)
		}
		lines = append(lines, told...)
	}
	return lines, nil
}

// tableLines tells a table: a line for the table, and one for each of its chains, rules, sets, elements and other objects.
func tableLines(conn *nft.Conn, t *nft.Table, chains []*nft.Chain) ([]string, error) {
	links, err := linkNames()
	if err != nil {
		return nil, err
	}
	prefix := fmt.Sprintf("nft table %s %s", nftFamilies[t.Family], t.Name)
	head := prefix
	switch flags := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, t.Flags)); {
	case flags == unix.NFT_TABLE_F_DORMANT:
		head += " { flags dormant; }"
	case flags != 0:
		head += fmt.Sprintf(" { flags %#x; }", flags)
	}
	lines := []string{head}
	devices, err := devicesOf(t)
	if err != nil {
		return nil, err
	}
	for _, c := range chains {
		lines = append(lines, prefix+" chain "+chainHead(c, devices[c.Name]))
	}
	sets, err := setsOf(conn, t, links)
	if err != nil {
		return nil, err
	}
	teller := nftTeller{family: t.Family, links: links, sets: map[string]string{}}
	for _, s := range sets {
		if s.Anonymous {
			teller.sets[s.Name] = "{ " + strings.Join(s.elements, ", ") + " }" // the rule has it
			continue
		}
		lines = append(lines, prefix+" "+s.head())
		what, _, _ := strings.Cut(s.head(), " ")
		for _, e := range s.elements {
			lines = append(lines, fmt.Sprintf("%s %s %s element %s", prefix, what, s.Name, e))
		}
	}
	rules, err := rulesOf(t)
	if err != nil {
		return nil, err
	}
	place := map[string]int{}
	for _, r := range rules {
		teller.exprs = r.exprs
		lines = append(lines, fmt.Sprintf("%s chain %s rule %03d %s%s", prefix, r.chain, place[r.chain], teller.tell(), r.comment()))
		place[r.chain]++
	}
	others, err := objectLines(conn, t)
	if err != nil {
		return nil, err
	}
	for _, o := range others {
		lines = append(lines, prefix+" "+o)
	}
	return lines, nil
}

// objectTypes are the names of NFT_OBJECT_.
var objectTypes = map[nft.ObjType]string{
	unix.NFT_OBJECT_COUNTER: "counter", unix.NFT_OBJECT_QUOTA: "quota", unix.NFT_OBJECT_CT_HELPER: "ct helper", unix.NFT_OBJECT_LIMIT: "limit",
	unix.NFT_OBJECT_CT_TIMEOUT: "ct timeout", unix.NFT_OBJECT_CT_EXPECT: "ct expectation", unix.NFT_OBJECT_SYNPROXY: "synproxy", unix.NFT_OBJECT_SECMARK: "secmark",
}

// objectLines tells a table's named counters and the like, and its flowtables.
func objectLines(conn *nft.Conn, t *nft.Table) (lines []string, err error) {
	objects, err := conn.GetNamedObjects(t)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		named, ok := o.(*nft.NamedObj)
		if !ok {
			return nil, fmt.Errorf("an object of type %T", o)
		}
		typ := objectTypes[named.Type]
		if typ == "" {
			typ = fmt.Sprintf("object %d", named.Type)
		}
		lines = append(lines, typ+" "+named.Name)
	}
	flowtables, err := conn.ListFlowtables(t)
	if err != nil {
		return nil, err
	}
	for _, f := range flowtables {
		lines = append(lines, fmt.Sprintf("flowtable %s { devices = { %s }; }", f.Name, strings.Join(f.Devices, ", ")))
	}
	return lines, nil
}
