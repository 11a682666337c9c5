package verbs

import (
	"context"
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

// Check compares an attachment with its prevResult and with the world, on the
// host and in the pod, and names all that differs (CNI 1.1, section 4, CHECK).
func (v *Verbs) Check(ctx context.Context, req api.AddRequest, w daemon.When) error {
	add, err := v.parse(req, w)
	if err != nil {
		return err
	}
	if add.conf.PrevResult == nil {
		return cni.Errorf(cni.CodeConfig, "prevResult is missing", "CHECK of %s compares with the result of ADD", add.record.Key)
	}
	prev, err := mode.ParseResult(add.conf)
	if err != nil {
		return err
	}
	var e *attachment.Entry
	for _, c := range v.index.Key(add.record.Key) {
		if c.Owner.Wanted() {
			e = c
		}
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
		differ = append(differ, fmt.Sprintf("it was attached to another network namespace, at %s", e.Record.Netns.Path))
	}
	differ = append(differ, mode.Against(m, e, prev)...)
	for _, err := range v.compare(ctx, m, e) {
		differ = append(differ, err.Error())
	}
	if len(differ) > 0 {
		return cni.Errorf(cni.CodeCheck, fmt.Sprintf("attachment %s differs", e.Owner.ID), "%s", strings.Join(differ, "\n"))
	}
	return nil
}

// compare says what of an attachment is not as it should be: its holds, the
// inside of its pod, and what the node has for all pods of its pool.
func (v *Verbs) compare(ctx context.Context, m mode.Mode, e *attachment.Entry) []error {
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	note(v.Engine.Verify(ctx, e.Owner))
	note(m.VerifyPod(ctx, e.Owner))
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

// seenIn is an attachment whose pod was not found when it was adopted, with the
// network namespace that a CHECK of it names: that has to have its interface.
func (v *Verbs) seenIn(m mode.Mode, netns ns.Ref, e *attachment.Entry) *attachment.Entry {
	if e.Record.KnowsNetns() {
		return e
	}
	rec := e.Record
	rec.Netns = netns
	return v.index.Entry(m.In(netns, e.Owner), rec)
}
