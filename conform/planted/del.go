package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// del detaches a pod. It needs neither the pod's network namespace nor a result: the lease
// says everything. An attachment without a lease is detached already.
func (c *call) del() error {
	if err := c.plantedDel(); err != nil {
		return err
	}
	if err := c.pass("DEL"); err != nil && !c.fault("del-error-swallowed") {
		return err
	}
	l, err := c.find()
	if err != nil {
		return err
	}
	if l == nil {
		if c.fault("second-del-fails") {
			return fail(codeOurs, "nothing is known of %s of %s", c.ifname, c.id)
		}
		return nil
	}
	return c.undo(l)
}

// undo removes all parts of an attachment that exist. It removes the lease last.
func (c *call) undo(l *lease) error {
	if c.fault("missing-link-ends-del") && !l.Chained {
		if there, err := linkExists(l.Link); err != nil || !there {
			return err
		}
	}
	if c.fault("lease-first") {
		if err := c.free(l); err != nil {
			return err
		}
		dawdle()
	}
	if err := c.unmapPorts(l); err != nil {
		return err
	}
	if !c.fault("rule-left") {
		if err := l.deleteRule(); err != nil {
			return err
		}
	}
	switch {
	case l.Link == "": // it is another plugin's
	case c.fault("link-left"):
		if err := deleteRoute(l); err != nil {
			return err
		}
	default: // the pod's end and the route go with the link
		if err := deleteLink(l.Link); err != nil {
			return err
		}
	}
	if c.verb == "ADD" {
		if err := c.pass("DEL"); err != nil {
			return err
		}
	}
	if l.Extra != "" {
		if err := deleteLink(l.Extra); err != nil {
			return err
		}
	}
	switch {
	case c.fault("address-not-freed"):
		return nil
	case c.fault("addresses-lost-without-netns") && c.verb == "DEL" && c.netns == "":
		useUp(l.Address)
	case c.fault("id-kept-without-netns") && c.verb == "DEL" && c.netns == "":
		if err := remember(c.id); err != nil {
			return err
		}
	}
	return c.free(l)
}

// plantedDel has the faults of a DEL that relies on things that DEL may not rely on, such as prevResult
// and the pod's network namespace.
func (c *call) plantedDel() error {
	switch {
	case c.fault("prev-result-needed") && c.Prev == nil:
		return fail(codeConfig, "prevResult is missing")
	case c.fault("hang") && c.gone():
		time.Sleep(time.Hour)
	case c.fault("del-needs-living-netns") && c.gone():
		return fail(codeVariable, "CNI_NETNS: there is no %s", c.netns)
	case c.fault("del-by-address") && c.Prev != nil:
		return c.delByAddress()
	}
	return nil
}

// gone reports whether CNI_NETNS names a network namespace that does not exist any more.
func (c *call) gone() bool {
	_, err := os.Stat(c.netns)
	return c.netns != "" && err != nil
}

// delByAddress undoes another attachment: the one that now has this attachment's former address.
func (c *call) delByAddress() error {
	prev, err := c.previous()
	if err != nil {
		return err
	}
	all, err := c.leases()
	if err != nil {
		return err
	}
	for _, l := range all {
		if l.Address == prev[0].Addr() {
			return c.undo(&l)
		}
	}
	return nil
}

// collectFiles removes the files of attachments that are detached, which DEL has left.
func collectFiles(dir string, attached []lease) {
	files, _ := filepath.Glob(filepath.Join(dir, "result-*")) // the pattern is one
	for _, path := range files {
		id := strings.TrimPrefix(filepath.Base(path), "result-")
		if !slices.ContainsFunc(attached, func(l lease) bool { return l.ID == id }) {
			_ = os.Remove(path) // the next GC tries again
		}
	}
}

// gc undoes all attachments that the runtime does not list as valid (CNI 1.1, section 2, GC). It goes on
// after an error.
func (c *call) gc() error {
	all, err := c.leases()
	if err != nil || c.fault("gc-ignores") {
		return err
	}
	if c.fault("file-left-until-gc") {
		collectFiles(c.StateDir, all)
	}
	valid := map[attachment]bool{}
	listed := *c.Valid
	if c.fault("gc-reads-old-key") {
		listed = c.Old
	}
	for _, a := range listed {
		if c.fault("id-cut") && len(a.ID) > 12 {
			a.ID = a.ID[:12]
		}
		valid[a] = true
	}
	var errs []error
	for _, l := range all {
		keep := valid[attachment{l.ID, l.Ifname}]
		ours := l.Network == c.Name && l.Chained == c.Chained
		switch {
		case !ours && !c.fault("gc-takes-other-networks"):
		case keep && !c.fault("gc-removes-everything"):
		default:
			errs = append(errs, c.undo(&l))
		}
	}
	return errors.Join(errs...)
}
