package nft

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/stamp"
)

// Map adds host ports to the instance's tables, in one transaction. Host ports that are in the table
// already stay. If the table maps one of the ports to something else, the error is kernel.ErrExists or
// kernel.ErrBusy; if there is no table, or it has no place for host ports, kernel.ErrNotFound.
//
//	add element inet NAME anyports4 { tcp . 8080 comment "OWNER" : 10.88.0.7 . 80 }
func (t *Tables) Map(instance string, ports []Port) error {
	err := t.transact(func(r *request) {
		for _, in := range byName(portEntries(ports)) {
			r.in(in.family).addEntries(stamp.Table(instance), 0, in.set, in.entries)
		}
	})
	if err != nil {
		return fmt.Errorf("mapping ports in nftables table %s: %w", stamp.Table(instance), kernel.Classify(err))
	}
	return nil
}

// Unmap removes host ports from the instance's table, in one transaction. "Not there" is
// success.
//
//	delete element inet NAME anyports4 { tcp . 8080 }
func (t *Tables) Unmap(instance string, ports []Port) error {
	table := stamp.Table(instance)
	if err := t.unmap(table, byName(portEntries(ports))); err != nil {
		return fmt.Errorf("unmapping ports in nftables table %s: %w", table, kernel.Classify(err))
	}
	return nil
}

// unmap deletes elements, as far as they are there.
func (t *Tables) unmap(table string, gone []named) error {
	err := t.deleteAll(table, gone)
	for range readTries {
		if !errors.Is(err, unix.ENOENT) {
			break
		}
		// Somebody else has deleted one of the elements, and so the kernel deletes none of them.
		var there []set
		if there, err = t.readPorts(table); err == nil {
			gone = among(gone, there)
			err = t.deleteAll(table, gone)
		}
	}
	return err
}

func (t *Tables) deleteAll(table string, gone []named) error {
	if len(gone) == 0 {
		return nil
	}
	return t.transact(func(r *request) {
		for _, in := range gone {
			r.in(in.family).deleteEntries(table, in.set, in.entries)
		}
	})
}

// among returns those of the elements that the sets have.
func among(elements []named, sets []set) []named {
	var both []named
	for _, in := range elements {
		for _, s := range sets {
			if s.name != in.set {
				continue
			}
			in.entries = slices.DeleteFunc(slices.Clone(in.entries), func(e entry) bool { return !slices.Contains(s.entries, e) })
			if len(in.entries) > 0 {
				both = append(both, in)
			}
		}
	}
	return both
}

// Mapped returns the host ports in the instance's table, by owner. Without a table there are no
// host ports.
func (t *Tables) Mapped(instance string) ([]Port, error) {
	sets, err := t.readPorts(stamp.Table(instance))
	if err != nil {
		return nil, fmt.Errorf("reading the host ports in nftables table %s: %w", stamp.Table(instance), kernel.Classify(err))
	}
	return portsOf(sets), nil
}

// Others returns the host ports in the tables of other instances, by the tables' names.
//
//	nft list tables inet; nft list map inet NAME anyports4
func (t *Tables) Others(instance string) (map[string][]Port, error) {
	names, err := t.names()
	if err != nil {
		return nil, fmt.Errorf("listing nftables tables: %w", kernel.Classify(err))
	}
	all := map[string][]Port{}
	for _, name := range names {
		if !stamp.IsTable(name) || name == stamp.Table(instance) {
			continue
		}
		sets, err := t.readPorts(name) // none, if the table is gone by now
		if err != nil {
			return nil, fmt.Errorf("reading the host ports in nftables table %s: %w", name, kernel.Classify(err))
		}
		all[name] = portsOf(sets)
	}
	return all, nil
}

// names lists the tables of the family inet. Each ADD with host ports calls names, so names must be
// cheap: one dump costs a quarter of what atOnce needs to prove that several dumps fit together. If the
// node has so many tables that the dump has several parts, the kernel marks the parts before which the
// tables changed. A table that somebody replaces is in the dump all the same: the kernel lists the new
// one behind the old one, and makes both changes active at one moment.
func (t *Tables) names() (names []string, err error) {
	err = t.conns.asking(func(c *netlink.Conn) error {
		for range readTries {
			tables, err := ask(c, 0, unix.NFT_MSG_GETTABLE, netlink.Dump)
			if err != nil {
				return err
			}
			if slices.ContainsFunc(tables, interrupted) {
				continue
			}
			for _, m := range tables {
				attrs, err := attributes(m)
				if err != nil {
					return err
				}
				names = append(names, text(attrs[unix.NFTA_TABLE_NAME]))
			}
			return nil
		}
		return fmt.Errorf("they keep changing: %w", kernel.ErrAgain)
	})
	return names, err
}

// interrupted reports whether the things that a dump lists changed during the dump, as one of its
// messages says.
func interrupted(m netlink.Message) bool { return m.Header.Flags&netlink.DumpInterrupted != 0 }

// readPorts reads the sets and maps of host ports of a table and of the one of family bridge, and nothing else of them.
func (t *Tables) readPorts(table string) (sets []set, err error) {
	err = t.conns.reading(func(c *netlink.Conn) error {
		sets = allPortSets()
		for i := range sets {
			var err error
			sets[i].entries, err = readEntries(c, sets[i].family, table, sets[i].name)
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		return nil
	})
	return sets, err
}

// named are the elements of a set.
type named struct {
	family  byte // of the table that has it, as set's
	set     string
	entries []entry
}

// byName sorts elements by their sets' names.
func byName(all map[string][]entry) []named {
	var list []named
	for _, s := range allPortSets() {
		if len(all[s.name]) > 0 {
			list = append(list, named{s.family, s.name, all[s.name]})
		}
	}
	return list
}
