package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lease is the record of an attachment. The plugin writes the lease before it makes anything for the
// attachment, and removes the lease when everything is gone. It is a file named after the address.
type lease struct {
	Network, ID, Ifname string
	Link                string // the host's end of the veth pair
	Address             netip.Addr
	Extra               string // another link on the host, by the fault kill-unsafe
	Ports               []portMapping
	Chained             bool // the address belongs to another plugin; this plugin has only made the rule
}

// begun is the name that a lease's file has until the lease is written completely.
const begun = "begun"

// lock lets one process of the plugin at a time work with the state folder. It locks the folder itself,
// so that there is no lock file to leave behind.
func (c *call) lock() (unlock func(), err error) {
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return nil, fail(codeIO, "making the state folder: %w", err)
	}
	if c.fault("not-parallel") {
		return func() {}, nil
	}
	dir, err := os.Open(c.StateDir)
	if err != nil {
		return nil, fail(codeIO, "opening the state folder: %w", err)
	}
	if c.fault("busy-at-once") {
		if err := busy(dir); err != nil {
			return nil, err
		}
	}
	if c.fault("broken-at-once") {
		if err := breakAtOnce(dir); err != nil {
			return nil, err
		}
	}
	if c.fault("hang-at-once") && unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		time.Sleep(time.Hour)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return nil, fail(codeIO, "locking the state folder: %w", err)
	}
	// A plugin that was killed may have left the file that it had begun to write.
	if err := os.Remove(filepath.Join(c.StateDir, begun)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fail(codeIO, "removing what was begun: %w", err)
	}
	return func() { dir.Close() }, nil
}

// leases returns all leases, of every network.
func (c *call) leases() ([]lease, error) {
	entries, err := os.ReadDir(c.StateDir)
	if err != nil {
		return nil, fail(codeIO, "reading the state folder: %w", err)
	}
	var all []lease
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(c.StateDir, e.Name()))
		if err != nil {
			return nil, fail(codeIO, "reading a lease: %w", err)
		}
		var l lease
		if json.Unmarshal(raw, &l) == nil && l.file() == e.Name() {
			all = append(all, l)
		}
	}
	return all, nil
}

func (l lease) file() string {
	switch {
	case l.Chained:
		return "chained-" + l.Address.String()
	case strings.HasPrefix(l.Network, ofIPAM):
		return ofIPAM + l.Address.String()
	}
	return l.Address.String()
}

// find returns the lease of this attachment, if there is one.
func (c *call) find() (*lease, error) {
	all, err := c.leases()
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		if l.Network == c.Name && l.ID == c.id && l.Chained == c.Chained && (l.Ifname == c.ifname || c.verb == "DEL" && c.fault("ifname-not-in-key")) {
			return &l, nil
		}
	}
	return nil, nil
}

// reserve writes a lease with a free address. The second address of the subnet is the gateway's.
func (c *call) reserve() (*lease, error) {
	if c.IPAM.Type != "" {
		return c.borrow()
	}
	all, err := c.leases()
	if err != nil {
		return nil, err
	}
	taken := map[netip.Addr]bool{c.subnet.Masked().Addr(): true, c.gateway(): true, broadcast(c.subnet): true}
	for _, l := range all {
		taken[l.Address] = true
	}
	if c.fault("not-parallel") {
		time.Sleep(20 * time.Millisecond)
	}
	if c.fault("addresses-used-up") || c.fault("addresses-lost-without-netns") {
		for _, addr := range usedUp() {
			taken[addr] = true
		}
	}
	for addr := c.subnet.Masked().Addr(); c.subnet.Contains(addr); addr = addr.Next() {
		if !taken[addr] {
			l := &lease{Network: c.Name, ID: c.id, Ifname: c.ifname, Link: c.hostLink(), Address: addr, Ports: c.Runtime.PortMappings}
			switch {
			case c.fault("addresses-used-up"):
				useUp(addr)
			case c.fault("addresses-lost-without-netns"):
				useUp(c.gateway()) // so that the file is there before a DEL without CNI_NETNS
			}
			return l, c.keep(l)
		}
	}
	return nil, fail(codeFull, "subnet %s has no free address", c.subnet)
}

// keep writes a lease as a whole or not at all.
func (c *call) keep(l *lease) error {
	raw, err := json.Marshal(l)
	if err != nil {
		return err
	}
	path := filepath.Join(c.StateDir, begun)
	if c.fault("not-parallel") {
		path += fmt.Sprint(os.Getpid())
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return fail(codeIO, "writing a lease: %w", err)
	}
	if err := os.Rename(path, filepath.Join(c.StateDir, l.file())); err != nil {
		return fail(codeIO, "writing a lease: %w", err)
	}
	return nil
}

// free removes a lease, so that its address is free again.
func (c *call) free(l *lease) error {
	if err := os.Remove(filepath.Join(c.StateDir, l.file())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(codeIO, "removing a lease: %w", err)
	}
	return nil
}

// hostLink returns the name of the host's end. The name follows from the attachment, so that the lease
// can have it before the link exists.
func (c *call) hostLink() string {
	sum := sha256.Sum256([]byte(c.Name + " " + c.id + " " + c.ifname))
	return fmt.Sprintf("pl%x", sum[:6])
}

func (c *call) gateway() netip.Addr { return c.subnet.Masked().Addr().Next() }

func broadcast(p netip.Prefix) netip.Addr {
	last := p.Masked().Addr()
	for p.Contains(last.Next()) {
		last = last.Next()
	}
	return last
}
