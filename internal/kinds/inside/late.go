package inside

import (
	"errors"
	"io/fs"
	"sync"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// Supply gives an interface that was made without addresses the addresses and routes of its face, and reports whether it has changed anything. An
// interface that lacks one, or is down, goes down for that: so it loses the routes that it still has, and when it comes up again it tells the network
// its IPv4 addresses (sysctls). It stays down if stays returns an error. Wherever Supply stops, IsHalfSupplied says so until another one has come to
// its end.
func (p *Pod) Supply(f Face, l rtnl.Link, stays func() error) (changed bool, err error) {
	half, err := p.IsHalfSupplied(l)
	if err != nil {
		return false, err
	}
	addrs, err := p.MissingAddresses(f, l.Index)
	if err != nil {
		return false, err
	}
	routes, err := p.MissingRoutes(f, l.Index)
	if err != nil || len(addrs)+len(routes) == 0 && l.Up && !half {
		return false, err
	}
	if err := p.At.Do(func() error { return ns.SetSysctl(halfSupplied.name(l.Name), halfSupplied.want) }); err != nil {
		return false, err
	}
	if err := p.Conn.Do(rtnl.SetLinkAt(l.Index, rtnl.Down())); err != nil {
		return true, err
	}
	if err := p.prepare(f, l, halfSupplied); err != nil {
		return true, err
	}
	if err := stays(); err != nil {
		return true, err
	}
	if err := p.Open(f, l); err != nil {
		return true, err
	}
	return true, p.At.Do(func() error { return ns.SetSysctl(notifies.name(l.Name), notifies.want) })
}

// halfSupplied is notifies while Supply is at work: the kernel takes any number but 0 for yes. An interface that is down, or lacks routes, does not
// show who has done that, and what a pod does to its own interface is the pod's own business.
var halfSupplied = sysctl{notifies.before, notifies.after, "2"}

// IsHalfSupplied reports whether a Supply has stopped half-way: it was killed, or something failed.
func (p *Pod) IsHalfSupplied(l rtnl.Link) (half bool, err error) {
	err = p.At.Do(func() error {
		have, err := ns.Sysctl(halfSupplied.name(l.Name))
		half = have == halfSupplied.want
		return err
	})
	return half, err
}

// Strip takes all addresses off an interface, also those that the pod has added, and sets the interface up: an IPAM plugin may now say by it that
// they are given back, while nobody can be reached by them. Without IPv6 the interface has no address of that family.
//
//	ip -n POD addr flush dev NAME; ip -n POD link set NAME up
func (p *Pod) Strip(l rtnl.Link) error {
	err := p.At.Do(func() error { return ns.SetSysctl("ipv6/conf/"+l.Name+"/disable_ipv6", "1") })
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for more := true; more; { // however many the pod has added: the end of the context ends it
		var rs []rtnl.Request
		more = false
		err = p.Conn.EachAddress(l.Index, false, func(a rtnl.Address) error {
			if more = len(rs) >= Most; more {
				return rtnl.ErrStop
			}
			rs = append(rs, rtnl.DelAddress(a))
			return nil
		})
		if err != nil {
			return err
		}
		for _, err := range p.Conn.Each(rs...) {
			if err != nil && !errors.Is(err, kernel.ErrNotFound) { // one may go with another
				return err
			}
		}
	}
	// GetLink makes the kernel bring the carrier up to date: before that the interface sends nothing.
	err = p.Conn.Do(rtnl.SetLinkAt(l.Index, rtnl.Up()), rtnl.GetLinkAt(l.Index, new(rtnl.Link)))
	if errors.Is(err, kernel.ErrNotFound) { // a release beside it
		return nil
	}
	return err
}

// looks is how many pods Each looks into at the same time.
const looks = 16

// Each calls f for each hold, beside each other, and returns an answer for each. The path to a pod may hang, and the looks into other pods should not
// wait for that.
func Each(hs []hold.Hold, f func(hold.Hold) error) []error {
	errs := make([]error, len(hs))
	var closer sync.WaitGroup
	places := make(chan struct{}, looks)
	for i, h := range hs {
		places <- struct{}{}
		closer.Go(func() {
			errs[i] = f(h)
			<-places
		})
	}
	closer.Wait()
	return errs
}
