package verbs

import (
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/mode"
)

// chain holds an ADD to its place in the list of plugins: prevResult says whether plugins have run before this one (CNI 1.1,
// section 4, ADD). The record keeps prevResult for the answer.
func (a *addition) chain() error {
	const invalid = "invalid configuration: prevResult"
	chained := a.conf.Mode == netconf.ModeChained
	switch {
	case chained && a.conf.PrevResult == nil:
		return cni.Errorf(cni.CodeConfig, invalid, "it is missing: in mode %s berth-cni stands in a list of plugins, behind the one that makes the interface", a.conf.Mode)
	case !chained && a.conf.PrevResult != nil:
		return cni.Errorf(cni.CodeConfig, invalid, "mode %s makes its own interface: berth-cni has to be the first plugin of the list, or to have mode %s", a.record.Mode, netconf.ModeChained)
	case !chained:
		return nil
	}
	var err error
	a.record.PrevResult, err = mode.KeepResult(a.conf)
	return err
}

// sameChain refuses an ADD that finds an attachment of the same name at its place which another plugin of the list is, as when a list
// has berth-cni twice: once to make the interface, and once behind it.
func sameChain(e *attachment.Entry, c *netconf.Conf) error {
	if (e.Record.Mode == netconf.ModeChained) == (c.Mode == netconf.ModeChained) {
		return nil
	}
	return cni.Errorf(cni.CodeConfig, "invalid configuration: mode",
		"%s is already attached as %s in mode %s, and this ADD asks for mode %s: a list can have berth-cni only once", e.Record.Key, e.Owner.ID, e.Record.Mode, c.Mode)
}
