// Package status keeps the owner whose hold tells people which networks a pod has (kinds/podstatus), and says what it tells.
package status

import (
	"context"
	"fmt"
	"math"
	"sync"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/podstatus"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/nad"
)

// Options of New.
type Options struct {
	*daemon.Core
	Index *attachment.Index
	Modes mode.Modes
	// Tells reports whether a pod's annotation can be written.
	Tells func(*api.Pod) bool
	// Device returns what there is to know of the device of an attachment; nil: there is nothing (Device).
	Device func(hold.Owner) *nadv1.DeviceInfo
}

// Status tells people of pods' networks.
type Status struct {
	Options

	mu       sync.Mutex
	changing map[hold.ID]int // by first attachment: how many change its pod's networks
}

// New returns a Status.
func New(o Options) *Status { return &Status{Options: o, changing: map[hold.ID]int{}} }

// Change says that the caller changes the networks of the pod with a first attachment, and calls Tell before done. Meanwhile the annotation
// lags behind, and no audit says so.
func (v *Status) Change(first hold.ID) (done func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.changing[first]++
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.changing[first]--; v.changing[first] == 0 {
			delete(v.changing, first)
		}
	}
}

// Changing reports whether somebody changes the networks of the pod with a first attachment.
func (v *Status) Changing(first hold.ID) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changing[first] > 0
}

// Tell has the pod's annotation say which networks the pod has. The annotation is a hold of an owner that joins the first attachment,
// ahead of all further ones. A pod that has asked for nothing, and has got nothing but Berth's own network, has none. What cannot be written
// is owed, and no error. further says that the pod gets further networks, which the ledger need not have yet. If ctx has a spot in a line
// (turn.InLine), the annotation is written once that one's turn comes.
func (v *Status) Tell(ctx context.Context, first hold.ID, further bool) error {
	e := v.Index.Get(first)
	if e == nil || !v.Tells(e.Record.Pod) {
		return nil
	}
	for _, id := range v.Ledger.Needers(first) {
		if o, ok := v.Ledger.Owner(id); ok && o.Wanted() {
			if _, tells := o.Find(podstatus.KindName); tells {
				_ = v.Engine.Repair(podstatus.AtEnd(ctx), id) // the next sweep tries again
				return nil
			}
		}
	}
	if e.Record.Networks == nil && e.Record.Called == "" && !further && len(v.Index.Further(first)) == 0 {
		return nil
	}
	o := hold.Owner{ID: hold.NewID(), Needs: []hold.ID{first}, Joined: math.MaxInt32}
	pod := e.Record.Pod
	o.Holds = []hold.Hold{{Owner: o.ID, Spec: &podstatus.Spec{First: first, Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}}}
	return v.Engine.Take(ctx, o)
}

// Text returns what the annotation of the pod with a first attachment says (nad.KeyStatus).
func (v *Status) Text(first hold.ID) (string, error) {
	e := v.Index.Get(first)
	if e == nil {
		return "", fmt.Errorf("there is no attachment %s", first)
	}
	all := []*attachment.Entry{e}
	for _, f := range v.Index.Further(first) {
		if f.Owner.Wanted() && !v.Engine.Doomed(f.Owner.ID) && !v.Engine.Taking(f.Owner.ID) {
			all = append(all, f)
		}
	}
	var attached []nad.Attached
	for i, e := range all {
		m, err := v.Modes.Of(e.Record.Mode)
		if err != nil {
			return "", err
		}
		r, err := m.Result(e.Owner, e.Record)
		if err != nil {
			return "", err
		}
		attached = append(attached, nad.Attached{Network: e.Record.Label(), Default: i == 0, Result: r, Device: v.Device(e.Owner)})
	}
	text, bad := nad.Status(attached)
	if bad != nil {
		return "", bad
	}
	return text, nil
}

// Device returns an Options.Device. read knows which attachments have a device-info file, and says if nobody can read it
// (deviceinfo.Infos.Read); load reads one (devices.Files.Load).
func Device(read func(hold.Owner, func(hold.ID) error), load func(hold.ID) (*nadv1.DeviceInfo, error)) func(hold.Owner) *nadv1.DeviceInfo {
	return func(o hold.Owner) (info *nadv1.DeviceInfo) {
		read(o, func(id hold.ID) (err error) {
			info, err = load(id)
			return err
		})
		return info
	}
}
