package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
)

// errNoTable says that the kernel has no table of that name.
var errNoTable = errors.New("no such table")

// Generation numbers the states of a namespace's nftables: it grows with every
// transaction. 0 is no generation.
type Generation uint32

// Before reports whether g is older than o, even if the numbers have wrapped around
// between them.
func (g Generation) Before(o Generation) bool { return int32(g-o) < 0 }

// readTries is how often read reads a table if transactions keep coming in between.
const readTries = 50

// read returns the table as the kernel has it, with the one of family bridge, and the generation in which it was read.
// If there is no such table the error is errNoTable, and the generation is valid too, and so is what it returns of the table of family
// bridge.
//
//	list table inet NAME
func (t *Tables) read(name string) (have table, at Generation, err error) {
	c, err := t.conns.takeReader()
	if err != nil {
		return table{}, 0, fmt.Errorf("reading nftables table %s: %w", name, err)
	}
	defer func() {
		if err == nil || errors.Is(err, errNoTable) {
			t.conns.giveReader(c)
		} else {
			c.Close()
		}
	}()
	at, err = atOnce(c, func() (err error) { have, err = readBoth(c, name); return err })
	switch {
	case errors.Is(err, errNoTable):
		return have, at, err
	case err != nil:
		return table{}, 0, fmt.Errorf("reading nftables table %s: %w", name, kernel.Classify(err))
	}
	return have, at, nil
}

// atOnce calls read, which asks for several dumps, until no transaction came between the dumps: only
// then do the dumps fit together. atOnce returns read's error, and the generation that read has seen.
//
// The kernel counts a transaction as a new generation before it makes the transaction's rules active, one after the
// other (nf_tables_commit). So each try first waits for the transaction under way, by sending an empty
// transaction. The empty transaction changes nothing and makes no generation.
func atOnce(c *netlink.Conn, read func() error) (Generation, error) {
	for range readTries {
		before, err := generation(c)
		if err != nil {
			return 0, fmt.Errorf("the generation: %w", err)
		}
		if err := sendBatch(c); err != nil {
			return 0, fmt.Errorf("waiting for a transaction: %w", err)
		}
		failed := read()
		after, err := generation(c)
		if err != nil {
			return 0, fmt.Errorf("the generation: %w", err)
		}
		if before == after {
			return after, failed
		}
	}
	return 0, fmt.Errorf("it keeps changing: %w", kernel.ErrAgain)
}

// Generation returns the current generation.
func (t *Tables) Generation() (at Generation, err error) {
	err = t.conns.asking(func(c *netlink.Conn) (err error) { at, err = generation(c); return err })
	if err != nil {
		return 0, fmt.Errorf("reading the generation of nftables: %w", kernel.Classify(err))
	}
	return at, nil
}

// generation reads the current generation.
func generation(c *netlink.Conn) (Generation, error) {
	replies, err := ask(c, 0, unix.NFT_MSG_GETGEN, 0)
	if err != nil {
		return 0, err
	}
	for _, m := range replies {
		if g, ok := generationOf(m); ok {
			return g, nil
		}
	}
	return 0, errors.New("no generation in the answer")
}

// generationOf returns the generation in an NFT_MSG_NEWGEN; false for other messages.
func generationOf(m netlink.Message) (Generation, bool) {
	if m.Header.Type != messageType(unix.NFT_MSG_NEWGEN) {
		return 0, false
	}
	attrs, err := attributes(m)
	if err != nil || len(attrs[unix.NFTA_GEN_ID]) != 4 {
		return 0, false
	}
	return Generation(binary.BigEndian.Uint32(attrs[unix.NFTA_GEN_ID])), true
}

// readBoth reads the table of family inet with the one of family bridge. If there is no table of family inet the error is errNoTable.
func readBoth(c *netlink.Conn, name string) (table, error) {
	have, err := readTable(c, 0, name)
	if err != nil && !errors.Is(err, errNoTable) {
		return table{}, err
	}
	switch bridge, failed := readTable(c, unix.NFPROTO_BRIDGE, name); {
	case failed == nil:
		have.bridge = &bridge
	case !errors.Is(failed, errNoTable):
		return table{}, fmt.Errorf("of family bridge: %w", failed)
	}
	return have, err
}

// readTable reads everything in a table of a family, by several dumps. The table may change between
// them.
func readTable(c *netlink.Conn, family byte, name string) (table, error) {
	tables, err := ask(c, family, unix.NFT_MSG_GETTABLE, 0, attr(unix.NFTA_TABLE_NAME, name))
	if errors.Is(err, unix.ENOENT) {
		return table{}, errNoTable
	}
	if err != nil || len(tables) != 1 {
		return table{}, errors.Join(err, fmt.Errorf("%d tables in the answer", len(tables)))
	}
	have := table{family: family, name: name}
	attrs, err := attributes(tables[0])
	if err != nil {
		return table{}, err
	}
	have.flags = number(attrs[unix.NFTA_TABLE_FLAGS])
	if have.sets, err = readSets(c, family, name); err != nil {
		return table{}, fmt.Errorf("sets: %w", err)
	}
	if have.chains, err = readChains(c, family, name); err != nil {
		return table{}, fmt.Errorf("chains: %w", err)
	}
	// NFTA_TABLE_USE, which counts everything in the table, is of no use here: it
	// includes what a transaction that is not committed yet has done.
	for _, msg := range []uint16{unix.NFT_MSG_GETOBJ, unix.NFT_MSG_GETFLOWTABLE} {
		n, err := count(c, family, msg, name)
		if err != nil {
			return table{}, fmt.Errorf("objects: %w", err)
		}
		have.others += n
	}
	return have, nil
}

// count returns how many things of one sort are in the table. msg asks for all of them.
func count(c *netlink.Conn, family byte, msg uint16, table string) (n int, err error) {
	all, err := list(c, family, msg) // of all tables of the family
	for _, attrs := range all {
		if text(attrs[unix.NFTA_TABLE_NAME]) == table {
			n++
		}
	}
	return n, err
}

// unreadyList limits, as unready does for one message, the time for all messages of an answer together.
const unreadyList = 5 * unready

// ask sends one request for a family (0: inet) and returns the answers to it.
func ask(c *netlink.Conn, family byte, msg uint16, flags netlink.HeaderFlags, attrs ...netlink.Attribute) ([]netlink.Message, error) {
	raw, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(unreadyList)); err != nil {
		return nil, err
	}
	return c.Execute(netlink.Message{
		Header: netlink.Header{Type: messageType(msg), Flags: netlink.Request | flags},
		Data:   append(genmsg(family), raw...),
	})
}

// list asks for all things of a sort, and returns the attributes of each message that comes.
func list(c *netlink.Conn, family byte, msg uint16, attrs ...netlink.Attribute) ([]map[uint16][]byte, error) {
	replies, err := ask(c, family, msg, netlink.Dump, attrs...)
	if err != nil {
		return nil, err
	}
	all := make([]map[uint16][]byte, len(replies))
	for i, m := range replies {
		if all[i], err = attributes(m); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func messageType(msg uint16) netlink.HeaderType {
	return netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | msg)
}

// attr makes a string attribute.
func attr(typ uint16, s string) netlink.Attribute {
	return netlink.Attribute{Type: typ, Data: append([]byte(s), 0)}
}

// attributes returns a message's attributes by type; the types have no flags in them.
func attributes(m netlink.Message) (map[uint16][]byte, error) {
	if len(m.Data) < 4 {
		return nil, fmt.Errorf("message of %d bytes", len(m.Data))
	}
	return nested(m.Data[4:])
}

// nested returns the attributes inside an attribute, by type.
func nested(raw []byte) (map[uint16][]byte, error) {
	list, err := netlink.UnmarshalAttributes(raw)
	if err != nil {
		return nil, err
	}
	byType := make(map[uint16][]byte, len(list))
	for _, a := range list {
		byType[a.Type&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)] = a.Data
	}
	return byType, nil
}

// text returns a string attribute without its final NUL.
func text(raw []byte) string {
	if n := len(raw); n > 0 && raw[n-1] == 0 {
		raw = raw[:n-1]
	}
	return string(raw)
}

// number returns a 32-bit attribute; 0 if it is missing.
func number(raw []byte) uint32 {
	if len(raw) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(raw)
}
