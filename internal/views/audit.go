package views

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/mode"
)

// Audit compares the ledger with the node, and looks for deletions that wait in vain. It
// changes nothing.
func (v *Views) Audit(ctx context.Context) (api.Audit, error) {
	at := v.Wall()
	r := v.Engine.Audit(ctx)
	audit := api.Audit{Time: at, Owners: r.Owners, Holds: r.Holds, Findings: append([]api.Finding{}, v.unledgered()...)}
	for _, f := range append(r.Findings, v.traffic.Unrinsed()...) {
		audit.Findings = append(audit.Findings, v.finding(f))
	}
	audit.Findings = append(audit.Findings, v.undeleted()...)
	audit.Findings = append(audit.Findings, v.ground.LackFindings()...)
	audit.Findings = append(audit.Findings, v.ground.ForwardFindings()...)
	found := map[string]int{}
	for _, typ := range api.FindingTypes() {
		found[typ] = 0
	}
	for _, f := range audit.Findings {
		found[f.Type]++
	}
	v.Meter.Found(found)
	return audit, nil
}

// unledgered returns a finding if somebody has taken the ledger's file away from the
// running agent.
func (v *Views) unledgered() []api.Finding {
	err := v.Displaced()
	if err == nil {
		return nil
	}
	return []api.Finding{{Type: api.FindingMissing, Kind: "ledger", What: v.Root.Ledger(), Detail: fmt.Sprintf(
		"%v: move the file back, or restart berthd, which says what to do", err)}}
}

// AuditPods is Audit, and looks into the attached pods as well.
func (v *Views) AuditPods(ctx context.Context) (api.Audit, error) {
	audit, err := v.Audit(ctx)
	if err == nil {
		audit.Findings = append(audit.Findings, v.lookIntoPods(ctx)...)
		err = ctx.Err() // if ctx has ended, some pods were not looked into
	}
	return audit, err
}

// finding shows a finding of the engine.
func (v *Views) finding(f engine.Finding) api.Finding {
	out := api.Finding{Type: string(f.Type), Kind: f.Kind, Owner: string(f.Hold.Owner), Of: v.whose(f.Hold.Owner), What: f.Kind}
	if f.Hold.Spec != nil {
		out.What = f.Hold.Spec.String()
	}
	if f.Err != nil {
		out.Detail = f.Err.Error()
	}
	if f.Type == engine.Changed {
		out.Differences = hold.Differences(f.Err)
	}
	return out
}

// podsAtOnce is how many pods lookIntoPods looks into at once.
const podsAtOnce = 8

// lookIntoPods compares the inside of every attached pod with what the pod was given. The
// agent repairs nothing there, because the inside is the pod's own business.
func (v *Views) lookIntoPods(ctx context.Context) []api.Finding {
	all := v.index.All()
	slices.SortFunc(all, func(x, y *attachment.Entry) int { return strings.Compare(string(x.Owner.ID), string(y.Owner.ID)) })
	findings := make([]*api.Finding, len(all))
	var wg sync.WaitGroup
	places := make(chan struct{}, podsAtOnce)
	for i, e := range all {
		if ctx.Err() != nil {
			break
		}
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			findings[i] = v.lookIntoPod(ctx, e)
		})
	}
	wg.Wait()
	var list []api.Finding
	for _, f := range findings {
		if f != nil {
			list = append(list, *f)
		}
	}
	return list
}

// lookIntoPod returns what differs in a pod. It returns nil if nothing differs, or if the
// pod is being attached or released.
func (v *Views) lookIntoPod(ctx context.Context, e *attachment.Entry) *api.Finding {
	m, err := v.modes.Of(e.Record.Mode)
	if err != nil || !e.Owner.Wanted() || v.Engine.Taking(e.Owner.ID) {
		return nil
	}
	h, _ := e.Owner.Find(m.Place())
	err = mode.VerifyPod(ctx, m, v.index, e)
	if now := v.index.Get(e.Owner.ID); err == nil || now == nil || !now.Owner.Wanted() {
		return nil
	}
	f := v.finding(engine.Difference(h, err))
	f.What = "interface " + e.Record.Ifname + " in " + e.Record.Netns.Path
	return &f
}
