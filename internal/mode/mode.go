// Package mode says what a mode is: one way to give a pod an interface. A mode is a
// folder below this one and a line in the list (mode/modes). The verbs and the views ask a
// Mode, and know no kind. Deletions without an agent, repairs and the rebuild know pods by
// the stamps on their links (internal/stamp).
package mode

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// Mode plans attachments, and reads the plans that it made. All methods may be called at
// once. Owners that are passed in are the mode's own, and stay as they are.
type Mode interface {
	// Name is what configurations and records call the mode.
	Name() string
	// Pooled reports whether attachments of the mode have addresses of the agent's pools.
	Pooled() bool
	// NeedsPod reports whether giving back what an attachment, o, holds takes the pod's network namespace, which a runtime removes soon
	// after DEL: DEL waits for a moment.
	NeedsPod(o hold.Owner) bool

	// Fit refuses an attachment if the record's pool, or the mode, cannot give what the
	// configuration asks for. It changes nothing.
	Fit(r attachment.Record, c *netconf.Conf) error
	// Vacant refuses a place in a pod (network namespace and interface name) that
	// somebody else's interface has. pod is the namespace, open. It changes nothing.
	Vacant(r attachment.Record, pod Pod) error
	// Plan chooses all names, such as addresses, and returns the owner that the
	// attachment will be. The plan has what the configuration asks for: a repeated ADD
	// compares its configuration with the plan. undo gives the names back; the caller calls
	// undo if the owner does not get into the ledger.
	Plan(ctx context.Context, id hold.ID, r attachment.Record, c *netconf.Conf) (o hold.Owner, undo func(), err error)
	// Taken is called with an owner that Plan returned, once the engine has taken it, and before anybody hears of that. It is called again once
	// the owner is complete (Completer).
	Taken(o hold.Owner)
	// Result is the CNI result of an attachment: a function of its record.
	Result(o hold.Owner, r attachment.Record) (*types100.Result, error)

	// Place is the name of the kind whose hold takes the interface's place in the pod. An
	// ADD waits until the former owner of the place has released that hold.
	Place() string
	// Interface describes the attachment's interface, as its plan has it.
	Interface(o hold.Owner) (attachment.Interface, error)
	// In returns a copy of an attachment's owner whose interface is in netns, under the name
	// ifname: another network namespace, or the same one by another path.
	In(netns ns.Ref, ifname string, o hold.Owner) hold.Owner
	// Again is called with an attachment that answers a repeated ADD. `started` is when this ADD
	// began (CLOCK_BOOTTIME, ns). Again writes `started` onto the attachment's interface, where a
	// deletion without an agent reads when the attachment's last ADD began.
	Again(o hold.Owner, started int64) error
	// Differs reports whether a link of the node is not as its owner's plan has it.
	Differs(o hold.Owner, l rtnl.Link) bool
	// VerifyPod compares the inside of the pod with the plan. nil is that nothing differs.
	VerifyPod(ctx context.Context, o hold.Owner) error
}

// Pod is a pod's open network namespace.
type Pod interface {
	// HasLink reports whether the namespace has a link of that name, whoever made it.
	HasLink(name string) (bool, error)
}

// Vacant refuses a record's place in a pod where somebody else has an interface.
func Vacant(r attachment.Record, pod Pod) error {
	if there, err := pod.HasLink(r.Ifname); err != nil || !there {
		return nil // if the pod cannot be seen, the kind that makes the interface says so
	}
	return cni.Errorf(cni.CodeTaken, "interface exists in the pod", "%s in %s does not belong to this agent", r.Ifname, r.Netns.Path)
}

// Executor is a mode whose networks other plugins make, or give addresses to.
type Executor interface {
	Mode
	// Ready has the plugins of a network say whether they are ready; nil is that they are, or that there are none.
	Ready(ctx context.Context, c *netconf.Conf) error
}

// Collector is a mode that has other plugins collect, for all modes: plugins tell networks apart by name alone.
type Collector interface {
	Mode
	// Collect has the plugins of all networks give back what belongs to none of the owners, in one network after the other. It asks owners
	// again and again: an attachment that comes meanwhile is spared. Owners for whom no plugin was executed count for nothing. words are what
	// people might want to know, and no errors.
	Collect(ctx context.Context, owners func() []hold.Owner) (words []string, err error)
}

// Finder is a mode whose attachments can be found without a ledger, by the stamps on their
// links.
type Finder interface {
	Mode
	// Sight looks at the link that a deletion names, and returns what it sees if the link
	// is that of the deletion's key. nil means that there is no such link, or that the link
	// belongs to another agent, which runs. addrs are the addresses that the deletion names.
	Sight(link string, k attachment.Key, addrs []netip.Addr) (*Sight, error)
	// Adopt returns the owner of an attachment that no record tells of. seen is its link,
	// nil if the link is gone; names are the addresses that the attachment still has.
	Adopt(id hold.ID, r attachment.Record, seen *Sight, names []netip.Addr) hold.Owner
	// Survey finds every attachment of this agent's instance on the node. epoch is the epoch
	// in which they live, and now the wall clock's time.
	Survey(epoch string, now time.Time) ([]Found, error)
}

// Completer is a mode some of whose plans lack what is unknown before the engine has taken them, such as the addresses that an IPAM
// plugin gives. The attachment is incomplete until the engine has changed its owner as Complete says. If the agent ends before that, a
// repeated ADD completes the attachment; its release is that of any other.
type Completer interface {
	Mode
	// Incomplete reports whether an attachment lacks something.
	Incomplete(o hold.Owner) bool
	// Complete returns the change that gives an incomplete attachment what it lacks. undo gives back names that Complete has chosen; the caller
	// calls undo if nothing of the change gets into the ledger.
	Complete(ctx context.Context, o hold.Owner, r attachment.Record) (change func(*hold.Owner) error, undo func(), err error)
}

// Sight is what can be seen of a link that no owner in the ledger has.
type Sight struct {
	Name, Alias string
	MTU         int          // bytes
	MAC         string       // of the pod's end; "" if it was not seen
	Addresses   []netip.Addr // of the pod
	Ingress     rtnl.Rate    // the limit of what the pod receives
	Egress      rtnl.Rate    // the limit of what the pod sends
}

// Found is an attachment that was found in the kernel.
type Found struct {
	Owner     hold.Owner
	Record    attachment.Record
	Addresses []netip.Addr
	Lost      []string // what the kernel does not tell of the attachment
}

// Modes are the modes of an agent. A record that names no mode is a record of the first mode.
type Modes []Mode

// Of returns the mode that has a name, and the first mode for the name "".
func (ms Modes) Of(name string) (Mode, error) {
	for _, m := range ms {
		if m.Name() == name || name == "" {
			return m, nil
		}
	}
	return nil, fmt.Errorf("this agent has no mode %q", name)
}

// Expected says which modes a configuration may name. The first is the default.
func (ms Modes) Expected() string {
	text := strconv.Quote(ms[0].Name()) + ", which is also the default"
	for _, m := range ms[1:] {
		text += ", or " + strconv.Quote(m.Name())
	}
	return text
}

// Interface describes the attachment's interface, as its plan has it. The zero Interface
// means that the plan does not say.
func (ms Modes) Interface(o hold.Owner, r attachment.Record) attachment.Interface {
	m, err := ms.Of(r.Mode)
	if err != nil {
		return attachment.Interface{}
	}
	face, err := m.Interface(o)
	if err != nil {
		return attachment.Interface{}
	}
	return face
}
