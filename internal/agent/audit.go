package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/link"
)

// Audit compares the ledger with the node, and looks for deletions that wait in
// vain. It changes nothing.
func (a *Agent) Audit(ctx context.Context) (api.Audit, error) {
	at := a.wall()
	r := a.engine.Audit(ctx)
	audit := api.Audit{Time: at, Owners: r.Owners, Holds: r.Holds, Findings: append([]api.Finding{}, a.unledgered()...)}
	for _, f := range append(r.Findings, a.unrinsed()...) {
		audit.Findings = append(audit.Findings, a.finding(f))
	}
	audit.Findings = append(audit.Findings, a.undeleted()...)
	audit.Findings = append(audit.Findings, a.lackFindings()...)
	return audit, nil
}

// unledgered says whether the ledger was taken away from under the agent, which
// then writes what nobody will read again.
func (a *Agent) unledgered() []api.Finding {
	path := a.Root.Ledger()
	now, err := os.Stat(path)
	if err == nil && os.SameFile(now, a.opened) {
		return nil
	}
	if err == nil {
		err = errors.New("another file is in its place")
	}
	return []api.Finding{{Type: api.FindingMissing, Kind: "ledger", What: path, Detail: fmt.Sprintf(
		"%v; what is written now is lost with this process: restart berthd, which says what to do", err)}}
}

// AuditPods is an audit that looks into the attached pods as well.
func (a *Agent) AuditPods(ctx context.Context) (api.Audit, error) {
	audit, err := a.Audit(ctx)
	if err == nil {
		audit.Findings = append(audit.Findings, a.lookIntoPods(ctx)...)
		err = ctx.Err() // some pods were not looked into
	}
	return audit, err
}

// finding is a finding as the API shows it.
func (a *Agent) finding(f engine.Finding) api.Finding {
	out := api.Finding{Type: string(f.Type), Kind: f.Kind, Owner: string(f.Hold.Owner), Of: a.whose(f.Hold.Owner), What: f.Kind}
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

// podsAtOnce is how many pods are looked into at once.
const podsAtOnce = 8

// lookIntoPods compares the inside of every attached pod with what it was given.
// Nothing is repaired there: what a pod does inside is its own business.
func (a *Agent) lookIntoPods(ctx context.Context) []api.Finding {
	all := a.index.all()
	slices.SortFunc(all, func(x, y *entry) int { return strings.Compare(string(x.owner.ID), string(y.owner.ID)) })
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
			findings[i] = a.lookIntoPod(ctx, e)
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

// lookIntoPod returns what differs in a pod; nil: nothing does, or it is on its
// way in or out.
func (a *Agent) lookIntoPod(ctx context.Context, e *entry) *api.Finding {
	h, ok := e.owner.Find(link.KindName)
	if !ok || !e.owner.Wanted() || a.engine.Taking(e.owner.ID) {
		return nil
	}
	err := a.links.VerifyPod(ctx, h)
	if now := a.index.get(e.owner.ID); err == nil || now == nil || !now.owner.Wanted() {
		return nil
	}
	f := a.finding(engine.Difference(h, err))
	f.What = "interface " + e.record.Ifname + " in " + e.record.Netns.Path
	return &f
}
