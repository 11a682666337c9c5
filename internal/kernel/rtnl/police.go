package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/bpf"
)

// A link's police is a filter, with a program that drops what comes in above a rate
// (bpf.Policer). The filter stands at the ingress of a clsact, a discipline that has room for others'
// filters, too. Filter and clsact end with the link. The filter's name tells the rate.

const (
	// policer is the filter's handle, and pref its place among filters: ahead of all filters whose
	// maker chose no place, since the kernel gives these filters 49152 and less.
	policer = 0xbe98
	pref    = 98

	clsact       = "clsact"
	clsactHandle = 0xffff << 16 // TC_H_CLSACT without its minor number
	clsactParent = 0xfffffff1   // TC_H_CLSACT
	ingress      = 0xfffffff2   // TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)
	atTcInfo     = 16           // of struct tcmsg

	attrBPFFD    = 6 // TCA_BPF_FD
	attrBPFName  = 7 // TCA_BPF_NAME
	attrBPFFlags = 8 // TCA_BPF_FLAGS
	actDirect    = 1 // TCA_BPF_FLAG_ACT_DIRECT: the program says what happens to the packet
)

// policeOf returns the head of a message about the police of a link.
func policeOf(index int) *tcmsg {
	m := new(tcmsg)
	binary.NativeEndian.PutUint32(m[atTcIfindex:], uint32(index))
	binary.NativeEndian.PutUint32(m[atTcHandle:], policer)
	binary.NativeEndian.PutUint32(m[atTcParent:], ingress)
	binary.NativeEndian.PutUint32(m[atTcInfo:], policeInfo())
	return m
}

// policeInfo is the tcm_info of the filter: its pref and, in the network's byte order, all
// protocols.
func policeInfo() uint32 {
	all := binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL)
	return pref<<16 | uint32(binary.NativeEndian.Uint16(all))
}

// policeName is the filter's name. parsePolice reads it.
func policeName(r Rate) string { return fmt.Sprintf(policeFormat, r.Rate, r.Burst) }

const policeFormat = "berth-rate-%d-burst-%d"

// Police makes a link, found by its index, drop packets that come in above a rate. It replaces a filter
// that stands in the place of its own filter. Other programs' filters elsewhere stay. If the link does
// not exist the error is kernel.ErrNotFound. If the kernel can police no link, or does not let this
// process do so, the error is kernel.ErrUnsupported or kernel.ErrPermission.
//
// The program uses the link's MTU to count the bytes of unusual packets. If spent is true, the link
// begins as if the burst had just come in (bpf.NewPolicer explains mtu and spent).
//
//	tc qdisc add dev DEV clsact
//	tc filter replace dev DEV ingress pref 98 handle be98 bpf direct-action name NAME
func (c *Conn) Police(index int, r Rate, mtu int, spent bool) error {
	p, err := bpf.NewPolicer(r.Rate, uint64(r.Burst), mtu, spent)
	if err != nil {
		return err
	}
	defer p.Close()
	police := setPolice(index, p.FD(), r)
	errs := c.Each(addClsact(index), police)
	room, set := errs[0], errs[1]
	switch {
	case set == nil:
		return nil
	case room != nil && !errors.Is(room, kernel.ErrExists): // another qdisc may be in the way
		return unknownToTc(room)
	}
	return unknownToTc(c.Each(delPolice(index), police)[1]) // somebody's filter may have the place
}

// Unpolice takes away what Police has made on a link, found by its index. The room for filters (clsact) stays, because others may
// have filters there. "Not there" is success, also of the link.
//
//	tc filter del dev DEV ingress pref 98 handle be98 bpf
func (c *Conn) Unpolice(index int) error {
	var r Rate
	err := c.Do(getPolice(index, &r))
	if err == nil && r != (Rate{}) {
		err = c.Do(Request{
			text: fmt.Sprintf("tc filter del dev %d ingress pref %d handle %x bpf", index, pref, policer),
			typ:  unix.RTM_DELTFILTER,
			body: body(policeOf(index), nl.NewRtAttr(attrKind, nl.ZeroTerminated("bpf"))),
		})
	}
	if errors.Is(err, kernel.ErrNotFound) || errors.Is(err, kernel.ErrInvalid) || errors.Is(err, kernel.ErrUnsupported) {
		return nil
	}
	return err
}

// CanPolice returns why Police can work for no link, as far as CanPolice can see that without a link;
// nil if it knows no reason.
func CanPolice() error {
	p, err := bpf.NewPolicer(1, 1, 1500, false)
	if err == nil {
		_ = p.Close()
	}
	return err
}

// unknownToTc gives ENOENT the class kernel.ErrUnsupported: the kernel does not know a discipline or a
// filter. For a missing link the kernel returns ENODEV instead.
func unknownToTc(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %s", kernel.ErrUnsupported, err)
	}
	return err
}

// addClsact makes room for filters. If the link already has a clsact, which others may have made,
// the error is kernel.ErrExists.
//
//	tc qdisc add dev DEV clsact
func addClsact(index int) Request {
	m := new(tcmsg)
	binary.NativeEndian.PutUint32(m[atTcIfindex:], uint32(index))
	binary.NativeEndian.PutUint32(m[atTcHandle:], clsactHandle)
	binary.NativeEndian.PutUint32(m[atTcParent:], clsactParent)
	return Request{
		text:  fmt.Sprintf("tc qdisc add dev %d clsact", index),
		typ:   unix.RTM_NEWQDISC,
		flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
		body:  body(m, nl.NewRtAttr(attrKind, nl.ZeroTerminated(clsact))),
	}
}

// setPolice makes the filter, with a program given by its file descriptor.
//
//	tc filter replace dev DEV ingress pref 98 handle be98 bpf direct-action name NAME
func setPolice(index, fd int, r Rate) Request {
	options := nl.NewRtAttr(attrOptions, nil)
	options.AddRtAttr(attrBPFFD, nl.Uint32Attr(uint32(fd)))
	options.AddRtAttr(attrBPFName, nl.ZeroTerminated(policeName(r)))
	options.AddRtAttr(attrBPFFlags, nl.Uint32Attr(actDirect))
	return Request{
		text:  fmt.Sprintf("tc filter replace dev %d ingress pref %d handle %x bpf direct-action name %s", index, pref, policer, policeName(r)),
		typ:   unix.RTM_NEWTFILTER,
		flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE,
		body:  body(policeOf(index), nl.NewRtAttr(attrKind, nl.ZeroTerminated("bpf")), options),
	}
}

// delPolice deletes every filter, of any protocol, that stands where setPolice puts its filter.
//
//	tc filter del dev DEV ingress pref 98
func delPolice(index int) Request {
	m := policeOf(index)
	binary.NativeEndian.PutUint32(m[atTcHandle:], 0)
	binary.NativeEndian.PutUint32(m[atTcInfo:], pref<<16)
	return Request{text: fmt.Sprintf("tc filter del dev %d ingress pref %d", index, pref), typ: unix.RTM_DELTFILTER, body: body(m)}
}

// getPolice reads into r the rate to which Police holds what comes in by a link. An error of class
// kernel.ErrNotFound or kernel.ErrInvalid says that there is no such filter, or no such link.
//
//	tc filter get dev DEV ingress pref 98 handle be98 bpf
func getPolice(index int, r *Rate) Request {
	return Request{
		text: fmt.Sprintf("tc filter get dev %d ingress pref %d handle %x bpf", index, pref, policer),
		typ:  unix.RTM_GETTFILTER,
		body: body(policeOf(index), nl.NewRtAttr(attrKind, nl.ZeroTerminated("bpf"))),
		answer: func(b []byte) (err error) {
			_, *r, err = parsePolice(b)
			return err
		},
	}
}

// Policed returns the rates to which Police holds what comes in by links, by their indices. It
// leaves out links that have no police, or do not exist.
func (c *Conn) Policed(indices ...int) (map[int]Rate, error) {
	rates, requests := make([]Rate, len(indices)), make([]Request, len(indices))
	for i, index := range indices {
		requests[i] = getPolice(index, &rates[i])
	}
	policed := map[int]Rate{}
	for i, err := range c.Each(requests...) {
		switch {
		case err == nil && rates[i] != Rate{}:
			policed[indices[i]] = rates[i]
		case err != nil && !errors.Is(err, kernel.ErrNotFound) && !errors.Is(err, kernel.ErrInvalid) && !errors.Is(err, kernel.ErrUnsupported):
			return nil, err
		}
	}
	return policed, nil
}

// parsePolice reads an RTM_NEWTFILTER. rate is zero if the filter is not as Police makes it.
func parsePolice(b []byte) (index int, rate Rate, err error) {
	var kind string
	var options []byte
	if err := attributes(b, sizeofTcmsg, func(typ uint16, value []byte) {
		switch typ {
		case attrKind:
			kind = unix.ByteSliceToString(value)
		case attrOptions:
			options = value
		}
	}); err != nil {
		return 0, Rate{}, err
	}
	index = int(binary.NativeEndian.Uint32(b[atTcIfindex:]))
	if kind != "bpf" || binary.NativeEndian.Uint32(b[atTcHandle:]) != policer ||
		binary.NativeEndian.Uint32(b[atTcParent:]) != ingress || binary.NativeEndian.Uint32(b[atTcInfo:]) != policeInfo() {
		return index, Rate{}, nil
	}
	var name string
	direct := false
	if err := attributes(options, 0, func(typ uint16, value []byte) {
		switch typ {
		case attrBPFName:
			name = unix.ByteSliceToString(value)
		case attrBPFFlags:
			direct = uint32Of(value)&actDirect != 0
		}
	}); err != nil {
		return 0, Rate{}, err
	}
	if _, err := fmt.Sscanf(name, policeFormat, &rate.Rate, &rate.Burst); err != nil || !direct || policeName(rate) != name {
		return index, Rate{}, nil
	}
	return index, rate, nil
}
