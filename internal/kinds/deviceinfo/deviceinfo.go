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

	"github.com/berth-net/berth/internal/hold"
)

// KindName is the name of the kind, in ledger records too.
const KindName = "deviceinfo"

// Files are the files on the node (devices.Files). Programs that only read records of this kind do not need what reads the files.
type Files interface {
	// Path returns the path of an attachment's file, whether or not the file is there.
	Path(hold.ID) string
	// Copy writes what the device plugin tells of a device into an attachment's file, if it tells anything.
	Copy(id hold.ID, resource, device string) error
	// Has reports whether an attachment has a file, and Missing whether it has none and the device plugin tells something.
	Has(hold.ID) bool
	Missing(id hold.ID, resource, device string) bool
	Remove(hold.ID) error
	// All returns whose files there are.
	All() ([]hold.ID, error)
}

// Options of New.
type Options struct {
	Files Files
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

// Read has read look into the file of an owner, if the owner has one, and says if nobody can read it.
func (k *Infos) Read(o hold.Owner, read func(hold.ID) error) {
	h, has := o.Find(KindName)
	if !has {
		return
	}
	s, err := specOf(h)
	if err != nil { // another version of berthd wrote it
		return
	}
	if err := read(s.ID); err != nil {
		k.say(s.ID, err)
	}
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
