package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/attachment/adopt"
	"github.com/berth-net/berth/internal/attachment/plug"
	"github.com/berth-net/berth/internal/attachment/status"
	"github.com/berth-net/berth/internal/attachment/verbs"
	"github.com/berth-net/berth/internal/cluster"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/devices"
	"github.com/berth-net/berth/internal/drain"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/deviceinfo"
	"github.com/berth-net/berth/internal/kinds/podstatus"
	"github.com/berth-net/berth/internal/mend"
	"github.com/berth-net/berth/internal/mode/modes"
	"github.com/berth-net/berth/internal/networks"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/rebuild"
	"github.com/berth-net/berth/internal/traffic"
	"github.com/berth-net/berth/internal/views"
)

// Open opens what an agent works with: its folders, the kernel, the ledger and the views on
// the ledger. The agent changes nothing on the node before Restore.
func Open(o Options) (*Agent, error) { return open(o, node.Open, false) }

// open is Open on a node that openNode opens. If watches is set, the agent begins to hear the kernel's
// news, and to list the kernel's links, before the agent opens the ledger. If the agent cannot open
// the ledger, this work was in vain.
func open(o Options, openNode func() (*node.Node, error), watches bool) (*Agent, error) {
	a, err := openRooms(o, openNode)
	if err != nil {
		return nil, err
	}
	if watches {
		a.mend.Listen(a.drain.Waiting)
	}
	if err := a.openLedger(); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// openRooms opens everything but the ledger.
func openRooms(o Options, openNode func() (*node.Node, error)) (*Agent, error) {
	n, err := openNode()
	if err != nil {
		return nil, err
	}
	a := &Agent{node: n}
	if err := a.furnish(o); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return a, nil
}

// furnish makes the rooms, and gives each the rooms that it uses.
func (a *Agent) furnish(o Options) (err error) {
	n := a.node
	o.Owners = "pods"
	if a.core, err = daemon.New(o.Options, n.Place); err != nil {
		return err
	}
	d := &a.core.Core
	err = a.core.LoadInstance(func(instance string) (bool, error) {
		if err := rebuild.RefuseOrphans(a.core, n); err != nil {
			return false, err
		}
		return n.Taken(instance)
	})
	if err != nil {
		return err
	}
	if a.ground, err = ground.New(d, n, o.Config); err != nil {
		return err
	}
	a.index, a.networks = attachment.NewIndex(), new(networks.Networks)
	a.traffic = traffic.New(d, n, a.ground, a.index)
	err = n.Mark(d.Instance, node.Hooks{
		Lacks: a.ground.SayLacks, Differs: func() { a.ground.CutAnew(); a.traffic.Missed() }, Exposed: a.traffic.Exposed, Mapped: a.traffic.Mapped, Since: a.index.Since(d.Epoch),
		Kept: a.traffic.Ports.Kept, Astray: a.traffic.Astray, Left: a.traffic.Ports.ClearLeft, Going: drain.Later(&a.drain), Forwards: a.ground.Forwards,
		WireGuardKey: o.Root.WireGuardKey(), Runner: o.Root.RunnerSocket(),
		Status: podstatus.Options{
			Text: func(first hold.ID) (string, error) { return a.status.Text(first) },
			Write: func(ctx context.Context, pod *api.Pod, text string) error {
				return a.networks.WriteStatus(ctx, pod, text)
			},
			Changing: func(first hold.ID) bool { return a.status.Changing(first) },
		},
		Infos: deviceinfo.Options{Files: devices.FilesOf(o.Root, d.Instance), Lacks: func(err error) {
			d.Log.Warn("a pod's device-info file lacks something", "err", err)
		}},
		Unpoliced: a.ground.SayUnpoliced, Unhelped: a.ground.SayUnhelped,
	})
	if err != nil {
		return err
	}
	finder, all := modes.List(a.core, n, a.ground, a.traffic)
	a.index.Describe(all.Interface)
	// The agent watches the queue before it reads the queue, so that it misses no
	// deletion.
	if a.drain, err = drain.Open(d, n.Noticed, a.index, a.ground.Pools, finder); err != nil {
		return err
	}
	a.mend = mend.New(d, n, a.index, all, mend.Hooks{
		Drain: a.drain.All, Sweep: a.Sweep, Exposed: a.traffic.Exposed,
		Forwards: a.ground.Forwards, Forward: a.ground.Forward,
		Addressed: func() { a.traffic.MappedAnew(); a.cluster.Peers.Look() },
	})
	rooms := cluster.Rooms{Node: n, Ground: a.ground, Traffic: a.traffic, Kept: modes.Kept(a.core, n, a.ground, a.traffic)}
	if a.cluster, err = cluster.New(d, rooms, o.Config.Kubernetes, o.Version); err != nil {
		return err
	}
	if defs, has := a.cluster.Definitions(); has {
		a.networks.Cluster, a.networks.Devices = defs, devices.NewLister(devices.Socket(o.Root))
	}
	a.rebuild = rebuild.New(a.core, n, a.drain, a.ground, finder, a.core.LedgerOptions(n.Kinds(), daemon.Views{
		Rest:   a.ground.Rest,
		Follow: daemon.Follow(a.drain.Follow, a.index.Follow(a.unreadable), a.ground.Follow, a.traffic.Ports.Follow, a.cluster.Peers.Follow),
	}))
	a.Verbs = verbs.New(d, a.index, a.drain, a.ground, all, a.networks, n.OpenNetns)
	a.Adopter = adopt.New(d, a.index)
	a.Views = views.New(d, o.Version, a.index, a.drain, a.ground, a.traffic, all, a.cluster)
	a.status = status.New(status.Options{Core: d, Index: a.index, Modes: all, Tells: a.networks.Tells, Device: status.Device(n.Infos.Read, devices.FilesOf(o.Root, d.Instance).Load)})
	a.Verbs.SayNetworks, a.Verbs.ChangeNetworks = a.status.Tell, a.status.Change
	a.plugger = plug.New(plug.Options{Log: d.Log, Plug: a.Verbs.Plug, Heard: a.networks.Heard, Pods: a.index.Pods})
	a.cluster.Owed, a.cluster.Asked = a.Views.OwedHolds, a.plugger.Asked
	a.ground.Hooks = ground.Hooks{
		Exposed: a.traffic.Exposed, Rests: a.traffic.Rests, Left: a.traffic.Ports.ClearLeft, Tell: a.Tell,
		Cluster: a.cluster.Pools(), Counted: a.cluster.Counted, Unserved: a.cluster.Unserved,
		Others: a.cluster.Peers.Others, Overhead: a.cluster.Peers.Overhead,
	}
	return nil
}

func (a *Agent) unreadable(err error) {
	a.core.Log.Error("could not read a record of the ledger", "err", err)
}

// openLedger opens the ledger, enters this epoch, and fills the views.
func (a *Agent) openLedger() error {
	if err := a.rebuild.Open(); err != nil {
		return err
	}
	if err := a.index.Restore(a.core.Ledger.Owners()); err != nil {
		return err
	}
	a.RestoreHistory()
	if err := a.core.Enter(a.stays); err != nil {
		return err
	}
	a.ground.Restore()
	owners := a.core.Ledger.Owners()
	a.traffic.Ports.Restore(owners)
	a.cluster.Peers.Restore(owners)
	if err := a.ground.SetTable(); err != nil { // before the engine verifies the table
		return err
	}
	a.core.OpenEngine(a.node.Kinds(), daemon.Hooks{
		Event: a.Happened, Ending: a.Ends, Homeless: a.index.Homeless(a.core.Epoch), Going: a.drain.Going,
	})
	return nil
}

// stays names a pod that was attached in a former epoch and whose network namespace is
// still at its path. stays returns "" if it can see no such pod. The namespace's id, which the
// kernel never uses again, tells that the namespace is the same. Kernels before 5.14 tell no
// id: there stays finds no pod.
func (a *Agent) stays(former string) string {
	for _, e := range a.index.All() {
		if !e.Owner.Wanted() || e.Record.Epoch != former || e.Record.Netns.ID == 0 {
			continue
		}
		if _, err := a.node.Identify(e.Record.Netns); err == nil {
			return fmt.Sprintf("the network namespace of %s, %s,", e.Record.Key, e.Record.Netns)
		}
	}
	return ""
}

// clearLeft removes the host ports that a lost agent's table maps to pods that are gone.
func (a *Agent) clearLeft() {
	if err := a.traffic.Ports.ClearLeft(); err != nil {
		a.core.Log.Error("could not remove the host ports that another agent has left; the sweep tries again", "err", err)
	}
}

// Restore brings the node to what the ledger says. When Restore returns, all of this is done.
func (a *Agent) Restore(ctx context.Context) error {
	mend, err := a.resume(ctx)
	if err == nil {
		mend(ctx)
	}
	return err
}

// resume is what an agent does before it serves anybody. It takes what the agent itself holds,
// does the deletions that wait, cuts off again the owners that are being released, and
// releases the owners whose home has ended. resume leaves what attached pods lack to `mend`, which
// runs beside the verbs, because pods have a say in how long `mend` takes. The agent serves,
// deletions above all, even if resume could not put something right: resume logs that, and
// the sweep tries again.
func (a *Agent) resume(ctx context.Context) (mend func(context.Context), err error) {
	own := a.ground.Begin(ctx)
	if err := a.drain.Now(ctx); err != nil { // first, so that the restore does not set up again what a plugin has cut off
		a.core.Log.Error("could not carry out all queued deletions", "err", err)
	}
	a.clearLeft() // before an ADD can get an address to which they lead
	missing, mend := a.core.Resume(ctx)
	a.traffic.Resumed(missing)
	if own != nil {
		a.core.Doubt.Store(true)
	}
	a.ground.Keep(ctx)
	return mend, nil
}
