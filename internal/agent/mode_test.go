package agent

import (
	"errors"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/attachment/verbs"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/mode/modes"
	"github.com/berth-net/berth/internal/nettest"
)

// strict is a mode that knows only its own attachments.
type strict struct{ mode.Finder }

func (strict) Name() string { return "strict" }

func (strict) Result(hold.Owner, attachment.Record) (*types100.Result, error) {
	return nil, errors.New("it is another mode's")
}

// An attachment stays in its mode. If a runtime repeats an ADD with another mode, the mode that made
// the attachment answers: the other mode is for new pods. The agent refuses an unknown mode, and the
// refusal lists the modes.
func TestAttachmentStaysInItsMode(t *testing.T) {
	r := start(t)
	routed, _ := modes.List(r.core, r.node, r.ground, r.traffic)
	r.Agent.Verbs = verbs.New(&r.core.Core, r.index, r.drain, r.ground, mode.Modes{routed, strict{routed}}, r.networks, r.node.OpenNetns)
	pod := nettest.Pod(t)
	was := addresses(r.add(request("c", pod)))
	if now := addresses(r.add(request("c", pod, `"mode":"strict"`))); now[0] != was[0] {
		t.Errorf("repeated with another mode it has %v, not %v", now, was)
	}
	if got := r.index.All()[0].Record.Mode; got != "routed" {
		t.Errorf("its mode is %q", got)
	}
	_, err := r.tryAdd(request("d", nettest.Pod(t), `"mode":"ipvlan"`))
	wantError(t, err, 7, `mode is "ipvlan"; expected "routed", which is also the default, or "strict"`)
}
