package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
)

// Rate is what a token bucket lets through. The zero Rate limits nothing.
type Rate struct {
	Rate  uint64 `json:"rate"`  // bytes a second
	Burst uint32 `json:"burst"` // bytes, at least the link's MTU and its header (HeaderLen)
}

// HeaderLen is how many bytes of a packet on an Ethernet link its MTU does not count.
const HeaderLen = 14

// String returns the rate as tc's arguments.
func (r Rate) String() string {
	if r == (Rate{}) {
		return "no rate"
	}
	return fmt.Sprintf("rate %dbps burst %d", r.Rate, r.Burst) // bps is tc's word for bytes a second
}

// Bounds of the queue of packets that wait for tokens, in bytes. The queue has room for what the rate
// sends in 25 ms (queueTime), and for one more packet of many segments (GSO), which tbf takes whole if
// the packet is not above the burst. The least queue is small: as long as a packet waits, the kernel
// charges 832 bytes for the packet to the node's socket that sent it, although an empty packet has only
// 42 bytes. A pod that asks the node for more answers than the pod's rate lets through must not use up
// the send buffer of a server (212,992 bytes) or of the kernel's own socket (132,224 bytes), from which
// the node answers pings. 5 KiB are 121 empty packets, of which the burst of a low rate is a part. 5
// KiB also are three full packets. With three, TCP uses a rate of 250 kbit/s or more to the full; with
// two, TCP gets 200 kbit/s.
const (
	queueTime  = 40 // one second has 40 of them: 25 ms
	leastQueue = 5 << 10
	mostQueue  = 64 << 20
	segments   = 64 << 10
)

// queue returns how many bytes may wait for tokens.
func (r Rate) queue() uint32 {
	return max(uint32(min(r.Rate/queueTime, mostQueue))+min(r.Burst, segments), leastQueue)
}

// bucket returns how long the rate takes for its burst, in the kernel's ticks of 64 ns. ok is false if
// the kernel's number has no room for so long a time.
func (r Rate) bucket() (ticks uint64, ok bool) {
	const tick = 64
	if r.Rate == 0 {
		return 0, false
	}
	ticks = uint64(float64(r.Burst) / float64(r.Rate) * 1e9 / tick)
	return ticks, ticks < 1<<32
}

// shaper is the handle of the queueing disciplines that Shape makes, be98:. The handle distinguishes
// them from disciplines that others put in their place.
const shaper = 0xbe98 << 16

// From include/uapi/linux/pkt_sched.h and rtnetlink.h.
const (
	sizeofTcmsg    = 20
	root           = 0xffffffff // TC_H_ROOT
	attrKind       = 1          // TCA_KIND
	attrOptions    = 2          // TCA_OPTIONS
	attrSizes      = 8          // TCA_STAB
	attrParms      = 1          // TCA_TBF_PARMS
	attrRate64     = 4          // TCA_TBF_RATE64
	attrBurst      = 6          // TCA_TBF_BURST
	sizeofParms    = 36         // struct tc_tbf_qopt
	atRate         = 8          // of its members: rate.rate
	atPeak         = 20         // peakrate.rate
	atLimit        = 24
	atBuffer       = 28
	atMTU          = 32
	atLinkLayer    = 1
	linkLayerEther = 1 // TC_LINKLAYER_ETHERNET: tc need not send a table of times
	tbf            = "tbf"
	atTcIfindex    = 4
	atTcHandle     = 8
	atTcParent     = 12
	mostRate32     = 1<<32 - 1
)

// tcmsg is a struct tcmsg.
type tcmsg [sizeofTcmsg]byte

func (m *tcmsg) Len() int          { return len(m) }
func (m *tcmsg) Serialize() []byte { return m[:] }

// rootOf returns the head of a message about the root queueing discipline of a link.
func rootOf(index int) *tcmsg {
	m := new(tcmsg)
	binary.NativeEndian.PutUint32(m[atTcIfindex:], uint32(index))
	binary.NativeEndian.PutUint32(m[atTcParent:], root)
	return m
}

// Shape limits what a link, found by its index, sends, and replaces the link's former limit. If
// the link does not exist, or the kernel has no tbf, the error is kernel.ErrNotFound.
//
//	tc qdisc replace dev DEV root handle be98: tbf rate RATE burst BURST limit QUEUE
func Shape(index int, r Rate) Request {
	m := rootOf(index)
	binary.NativeEndian.PutUint32(m[atTcHandle:], shaper)
	parms := make([]byte, sizeofParms)
	parms[atLinkLayer] = linkLayerEther
	binary.NativeEndian.PutUint32(parms[atRate:], uint32(min(r.Rate, uint64(mostRate32))))
	binary.NativeEndian.PutUint32(parms[atLimit:], r.queue())
	// The kernel uses the MTU only with a peak rate, but keeps it in any case, so Shape keeps the burst
	// there. The kernel shows the burst itself only as a time, which is not exact, and has no room for
	// the time of a great burst.
	binary.NativeEndian.PutUint32(parms[atMTU:], r.Burst)
	options := nl.NewRtAttr(attrOptions, nil)
	options.AddRtAttr(attrParms, parms)
	options.AddRtAttr(attrBurst, nl.Uint32Attr(r.Burst))
	if r.Rate >= uint64(mostRate32) {
		options.AddRtAttr(attrRate64, binary.NativeEndian.AppendUint64(nil, r.Rate))
	}
	return Request{
		text:  fmt.Sprintf("tc qdisc replace dev %d root handle be98: tbf %s", index, r),
		typ:   unix.RTM_NEWQDISC,
		flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE,
		body:  body(m, nl.NewRtAttr(attrKind, nl.ZeroTerminated(tbf)), options),
	}
}

// Unshape takes a link's root queueing discipline away, whoever made it. If nobody has given the link a
// discipline the error is kernel.ErrNotFound.
//
//	tc qdisc del dev DEV root
func Unshape(index int) Request {
	return Request{text: fmt.Sprintf("tc qdisc del dev %d root", index), typ: unix.RTM_DELQDISC, body: body(rootOf(index))}
}

// Qdisc is a link's root queueing discipline.
type Qdisc struct {
	Index int    // of the link
	Kind  string // such as "tbf"; "": none that the kernel shows
	Shape Rate   // the rate with which Shape made the discipline; the zero Rate: it is not as Shape makes it
	Ours  bool   // it has the handle of those that Shape makes
	InWay bool   // Shape fails until somebody takes the discipline away, because it has Shape's handle
}

func (q Qdisc) String() string {
	switch {
	case q.Shape != Rate{}:
		return q.Shape.String()
	case q.Kind == tbf:
		return "another tbf"
	case q.Kind == "":
		return "no limit"
	}
	return q.Kind
}

// GetQdisc reads the root queueing discipline of a link, found by its index, into q. A link without a
// root discipline is no error: a link that was never up may have none. The kernel also tells monitors
// the answer.
//
//	tc qdisc show dev DEV root
func (c *Conn) GetQdisc(index int, q *Qdisc) error {
	*q = Qdisc{Index: index}
	err := c.Do(Request{
		text:   fmt.Sprintf("tc qdisc show dev %d root", index),
		typ:    unix.RTM_GETQDISC,
		flags:  unix.NLM_F_ECHO, // otherwise only sockets that listen to all changes get the answer
		body:   body(rootOf(index)),
		answer: func(b []byte) (err error) { *q, _, err = parseQdisc(b); return err },
	})
	if errors.Is(err, kernel.ErrInvalid) || errors.Is(err, kernel.ErrUnsupported) { // a discipline that the kernel does not show; a kernel without any
		return nil
	}
	return err
}

// Shaped lists the roots that Shape has made. The kernel walks all links and their queueing
// disciplines.
//
//	tc qdisc show root
func (c *Conn) Shaped() ([]Qdisc, error) {
	r := Request{text: "tc qdisc show root", typ: unix.RTM_GETQDISC, body: body(new(tcmsg))}
	shaped, err := dump(c, r, func(b []byte) (Qdisc, bool, error) {
		q, isRoot, err := parseQdisc(b)
		return q, isRoot && q.Shape != Rate{}, err
	})
	if errors.Is(err, kernel.ErrUnsupported) { // this kernel has no queueing disciplines to choose from
		return nil, nil
	}
	return shaped, err
}

// parseQdisc reads an RTM_NEWQDISC, and reports whether the discipline is a root.
func parseQdisc(b []byte) (q Qdisc, isRoot bool, err error) {
	var options []byte
	sized := false // the discipline counts packets with other sizes than their own (tc-stab(8)), which may be next to nothing
	if err := attributes(b, sizeofTcmsg, func(typ uint16, value []byte) {
		switch typ {
		case attrKind:
			q.Kind = unix.ByteSliceToString(value)
		case attrOptions:
			options = value
		case attrSizes:
			sized = true
		}
	}); err != nil {
		return Qdisc{}, false, err
	}
	q.Index = int(binary.NativeEndian.Uint32(b[atTcIfindex:]))
	ours := binary.NativeEndian.Uint32(b[atTcHandle:]) == shaper
	q.Ours, q.InWay = ours, ours && q.Kind != tbf
	if ours && q.Kind == tbf && !sized {
		if q.Shape, err = parseTBF(options); err != nil {
			return Qdisc{}, false, err
		}
	}
	return q, binary.NativeEndian.Uint32(b[atTcParent:]) == root, nil
}

// parseTBF reads the options of a tbf, and returns the rate with which Shape made it; the
// zero Rate if somebody has changed it.
func parseTBF(options []byte) (Rate, error) {
	var parms []byte
	var rate uint64
	if err := attributes(options, 0, func(typ uint16, value []byte) {
		switch {
		case typ == attrParms && len(value) >= sizeofParms:
			parms = value
		case typ == attrRate64 && len(value) >= 8:
			rate = binary.NativeEndian.Uint64(value)
		}
	}); err != nil || parms == nil {
		return Rate{}, err
	}
	if rate == 0 {
		rate = uint64(uint32Of(parms[atRate:]))
	}
	r := Rate{rate, uint32Of(parms[atMTU:])}
	time, known := r.bucket()
	buffer := uint64(uint32Of(parms[atBuffer:]))
	about := !known || buffer <= time+time/1000+2 && time <= buffer+buffer/1000+2 // the kernel computes with less digits
	if !about || uint32Of(parms[atLimit:]) != r.queue() || uint32Of(parms[atPeak:]) != 0 {
		return Rate{}, nil
	}
	return r, nil
}
