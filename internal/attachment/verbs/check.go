package verbs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/mode"
)

// Check compares an attachment with its prevResult, and with what is there on the host and
// in the pod. Its error names all differences (CNI 1.1, section 4, CHECK), and what Check could
// not look at. If Check has seen no difference, but could not look at everything, it says "try
// again": if a runtime hears that a pod is not as it should be, it may end the pod.
func (v *Verbs) Check(ctx context.Context, req api.AddRequest, w daemon.When) error {
	add, err := v.parse(req, w)
	if err != nil {
		return err
	}
	if add.conf.PrevResult == nil {
		return cni.Errorf(cni.CodeConfig, "prevResult is missing", "CHECK of %s compares the attachment with the result of its ADD", add.record.Key)
	}
	prev, err := mode.ParseResult(add.conf)
	if err != nil {
		return err
	}
	es, unsure := v.named(ctx, add)
	if len(es) == 0 {
		es = v.index.Former(add.record.Key)
	}
	var e *attachment.Entry
	for _, c := range es {
		if c.Owner.Wanted() {
			e = c
		}
	}
	if e == nil && unsure != nil {
		return cni.Errorf(cni.CodeTryAgain, "the agent cannot tell which attachment is meant",
			"%s may be attachment %s, whose full names the ledger lacks, but the interface in the pod differs from that attachment's", add.record.Key, unsure.Owner.ID)
	}
	if e == nil {
		return cni.Errorf(cni.CodeUnknown, "no such attachment", "%s is not attached", add.record.Key)
	}
	m, err := v.modes.Of(e.Record.Mode)
	if err != nil {
		return err
	}
	e = v.seenIn(m, add.record.Netns, e)
	var differ []string
	if !e.Record.Netns.Same(add.record.Netns) {
		differ = append(differ, fmt.Sprintf("the attachment belongs to another network namespace, at %s", e.Record.Netns.Path))
	}
	differ = append(differ, mode.Against(m, e, prev)...)
	var unseen []string
	for _, err := range append(v.compare(ctx, m, e), v.checkFurther(ctx, e, add.record.Netns)...) {
		if errors.Is(err, hold.ErrGone) || errors.Is(err, hold.ErrChanged) {
			differ = append(differ, err.Error())
		} else {
			unseen = append(unseen, err.Error())
		}
	}
	switch {
	case len(differ) > 0:
		return cni.Errorf(cni.CodeCheck, fmt.Sprintf("attachment %s is not as it should be", e.Owner.ID), "%s", strings.Join(append(differ, unseen...), "\n"))
	case len(unseen) > 0:
		return cni.Errorf(cni.CodeTryAgain, fmt.Sprintf("the agent could not look at all of attachment %s", e.Owner.ID), "%s", strings.Join(unseen, "\n"))
	}
	return nil
}

// compare lists how an attachment differs from what it should be (hold.ErrGone and
// hold.ErrChanged), and what could not be looked at (all other errors). It looks at the
// attachment's holds, at the inside of its pod, and at what the agent itself holds for all
// pods of the pool.
func (v *Verbs) compare(ctx context.Context, m mode.Mode, e *attachment.Entry) []error {
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	note(v.Engine.Verify(ctx, e.Owner))
	note(mode.VerifyPod(ctx, m, v.index, e))
	for _, name := range v.ground.Under(e.Owner) {
		id, _ := v.Ledger.Holder(name)
		if o, ok := v.Ledger.Owner(id); ok && o.Wanted() {
			note(v.Engine.Verify(ctx, o))
		} else {
			note(fmt.Errorf("%s %s: %w: the agent does not hold it", name.Space, name.Name, hold.ErrGone))
		}
	}
	return errs
}

// seenIn returns the attachment that a CHECK compares: e in the pod's network namespace by
// the path that the CHECK names, because the path that ADD named may be gone. If the pod of
// e was not found when e was adopted, the namespace that the CHECK names has to have the
// interface. If e has another namespace than the one that the CHECK names, seenIn returns e as it
// is.
func (v *Verbs) seenIn(m mode.Mode, netns ns.Ref, e *attachment.Entry) *attachment.Entry {
	rec := e.Record
	switch known := rec.KnowsNetns(); {
	case !known:
		rec.Netns = netns
	case rec.Netns.Same(netns) && rec.Netns.Path != netns.Path:
		rec.Netns.Path = netns.Path
	default:
		return e
	}
	return v.index.Entry(m.In(netns, rec.Ifname, e.Owner), rec)
}

// named returns the attachments that an ADD or a CHECK names. If none has the key, the attachment
// may be one that was adopted from a link whose alias lacks the end of the key. named returns such
// an attachment with the whole key, if the interface of that name in the pod belongs to the
// attachment, and is as it should be: several pods, and several interfaces of one pod, can have
// keys with the same beginning. Otherwise unsure is an attachment of which named cannot tell
// whether it has the key; nil: there is none.
func (v *Verbs) named(ctx context.Context, add *addition) (es []*attachment.Entry, unsure *attachment.Entry) {
	if es := v.index.Key(add.record.Key); len(es) > 0 {
		return es, nil
	}
	for _, e := range v.index.Shortened(add.record.Key) {
		m, err := v.modes.Of(e.Record.Mode)
		if err != nil || !e.Owner.Wanted() || e.Record.KnowsNetns() && !e.Record.Netns.Same(add.record.Netns) {
			continue
		}
		rec := e.Record
		rec.Key, rec.Netns = add.record.Key, add.record.Netns
		o := m.In(rec.Netns, rec.Ifname, e.Owner)
		if m.VerifyPod(ctx, o) == nil {
			return []*attachment.Entry{v.index.Entry(o, rec)}, nil
		}
		unsure = e
	}
	return nil, unsure
}
