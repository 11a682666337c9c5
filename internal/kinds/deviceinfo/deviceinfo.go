// Package deviceinfo is the kind of the file that tells of the device which one of a pod's networks has (device-info specification 1.1). The
// file has what the device plugin tells, or what the network's plugins write into it; the pod's status shows it.
//
// The file is a word to others, and optional: a device plugin need not tell anything, and the agent may lack the rights that the folder
// takes. So Acquire never fails. Release does: a file that stays is owed.
package deviceinfo

import (
	"context"
	"fmt"
	"sync"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/berth-net/berth/internal/devices"
	"github.com/berth-net/berth/internal/hold"
)

// KindName is the name of the kind, in ledger records too.
const KindName = "deviceinfo"

// Options of New.
type Options struct {
	Files devices.Files
	// Lacks is called with the reason if plugins or people do not get what a device plugin tells, once for each file and reason.
	Lacks func(error)
}

// Infos keeps the files.
type Infos struct {
	Options

	mu   sync.Mutex
	said map[hold.ID]string // what Lacks was last told, by the file's owner
}

// New returns infos.
func New(o Options) *Infos { return &Infos{Options: o, said: map[hold.ID]string{}} }

// Spec is the file of an attachment.
type Spec struct {
	ID       hold.ID `json:"id"`                 // the owner's, which names the file
	Resource string  `json:"resource,omitempty"` // of the device; "": no device plugin has given it. Find does not know it
	Device   string  `json:"device,omitempty"`   // the device's ID. Find does not know it
}

// Kind returns KindName.
func (s *Spec) Kind() string { return KindName }

func (s *Spec) String() string { return fmt.Sprintf("device-info file of %s", s.ID) }

// Kind returns the kind. A file is needed until the DEL of the network's plugins, which are Use holds, has succeeded.
func (k *Infos) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Reserve,
		New:     func() hold.Spec { return new(Spec) },
		Acquire: k.acquire,
		Verify:  hold.VerifyEach(k.verify),
		Release: hold.Each(k.release),
		Find:    k.find,
	}
}

func specOf(h hold.Hold) (*Spec, error) {
	s, ok := h.Spec.(*Spec)
	if !ok {
		return nil, fmt.Errorf("a hold of kind %s is no device-info file", h.Spec.Kind())
	}
	return s, nil
}

// acquire copies what the device plugin tells, unless the attachment has a file already: the network's plugins may have written more into it.
func (k *Infos) acquire(_ context.Context, h hold.Hold) error {
	s, err := specOf(h)
	if err != nil || s.Resource == "" || k.Files.Has(s.ID) {
		return err
	}
	k.say(s.ID, k.Files.Copy(s.ID, s.Resource, s.Device))
	return nil
}

// verify says whether what the device plugin tells is missing. Of what is there, nothing is compared: it is others' to write. What this
// run could not write is not missing: each sweep would try in vain.
func (k *Infos) verify(_ context.Context, h hold.Hold) error {
	s, err := specOf(h)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.Resource != "" && k.said[s.ID] == "" && k.Files.Missing(s.ID, s.Resource, s.Device) {
		return fmt.Errorf("%s: %w", s, hold.ErrGone)
	}
	return nil
}

func (k *Infos) release(_ context.Context, h hold.Hold) error {
	s, err := specOf(h)
	if err != nil {
		return err
	}
	k.mu.Lock()
	delete(k.said, s.ID)
	k.mu.Unlock()
	return k.Files.Remove(s.ID)
}

func (k *Infos) find(context.Context, *hold.Look) (found []hold.Hold, err error) {
	all, err := k.Files.All()
	for _, id := range all {
		found = append(found, hold.Hold{Owner: hold.ID(id), Spec: &Spec{ID: hold.ID(id)}})
	}
	return found, err
}

// Of returns what there is to know of the device that an owner has a file of; nil if there is nothing, or nothing that can be read.
func (k *Infos) Of(o hold.Owner) *nadv1.DeviceInfo {
	h, has := o.Find(KindName)
	if !has {
		return nil
	}
	s, err := specOf(h)
	if err != nil { // another version of berthd wrote it
		return nil
	}
	info, err := k.Files.Load(s.ID)
	if err != nil {
		k.say(s.ID, err)
	}
	return info
}

// say has Lacks say once why a file lacks something; nil: it lacks nothing.
func (k *Infos) say(id hold.ID, why error) {
	k.mu.Lock()
	last := k.said[id]
	if why == nil {
		delete(k.said, id)
	} else {
		k.said[id] = why.Error()
	}
	k.mu.Unlock()
	if why != nil && why.Error() != last {
		k.Lacks(fmt.Errorf("attachment %s: %w", id, why))
	}
}
