package verbs

import (
	"context"
	"strconv"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-net/berth/internal/answer"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/networks"
)

// choose chooses the pod's networks, and what makes the first one. It changes nothing.
func (v *Verbs) choose(ctx context.Context, add *addition) error {
	all, err := v.networks.Of(ctx, add.conf, networks.Pod{Pod: add.record.Pod, Ifname: add.record.Ifname, Args: add.args})
	if err != nil {
		return err
	}
	add.further = all[1:]
	if label := all[0].Label; label != add.record.Network {
		add.record.Called = label
	}
	return v.madeBy(add, all[0].Conf)
}

// madeBy sets what makes the network of an ADD.
func (v *Verbs) madeBy(add *addition, conf *netconf.Conf) (err error) {
	if add.mode, err = v.modes.Of(conf.Mode); err != nil {
		return cni.ConfigError("mode", strconv.AppendQuote(nil, conf.Mode), v.modes.Expected())
	}
	add.make, add.record.Mode = conf, conf.Mode
	if conf != add.conf {
		add.record.DNS = types.DNS(conf.DNS)
	}
	return nil
}

// fit chooses the pool of a new attachment. It refuses the ADD if a deletion could not be
// queued now, if the node lacks something that pods of the pool need, or if the mode cannot
// attach to the pool what the configuration asks for.
func (v *Verbs) fit(ctx context.Context, add *addition) (err error) {
	pool := ""
	if err := add.lendable(); err != nil {
		return err
	}
	if add.pooled() {
		if pool, err = v.ground.Choose(ctx, add.record.Pod, add.make.Pool, add.who()); err != nil {
			v.ground.Unserved(add.record.Pod, pool, err)
			return err
		}
	}
	if err := v.drain.Spared(); err != nil {
		return cni.Errorf(cni.CodeIO, "the disk may lack room for this pod's deletion", "%v", err)
	}
	add.record.Pool = pool
	if err := v.equipped(ctx, add); err != nil {
		return err
	}
	return add.mode.Fit(add.record, add.make)
}

// equipped refuses an ADD while the node lacks something that pods of its pool need.
func (v *Verbs) equipped(ctx context.Context, add *addition) error {
	if !add.mode.Pooled() {
		return nil
	}
	pool, whose := add.record.Pool, "pods of no pool"
	if pool != "" {
		whose = "pool " + pool
	}
	if err := v.ground.Equipped(ctx, pool); err != nil {
		return cni.Errorf(cni.CodeTryAgain, "the node is not ready for pods", "%s: %v", whose, err)
	}
	return nil
}

// pooled reports whether the addresses come from a pool of the agent.
func (a *addition) pooled() bool { return a.mode.Pooled() && a.make.IPAM == nil }

// lendable refuses a configuration that names an IPAM plugin for a mode that takes no addresses of any.
func (a *addition) lendable() error {
	if _, can := a.mode.(mode.Completer); !can && a.make.IPAM != nil {
		return cni.ConfigError("ipam.type", strconv.AppendQuote(nil, a.make.IPAM.Type), "no IPAM plugin: mode "+a.mode.Name()+" takes no addresses of one")
	}
	return nil
}

// plan chooses all names of a new incarnation. An ADD that names no pool means the default pool: if
// a reload has taken that pool away since fit chose it, plan chooses again, once.
func (v *Verbs) plan(ctx context.Context, add *addition) (hold.Owner, func(), error) {
	o, undo, err := v.planOnce(ctx, add)
	if add.make.Pool != "" || !answer.UnknownPool(err) {
		return o, undo, err
	}
	if err := v.fit(ctx, add); err != nil {
		return hold.Owner{}, nil, err
	}
	o, undo, err = v.planOnce(ctx, add)
	if answer.UnknownPool(err) {
		err = cni.Errorf(cni.CodeTryAgain, "the default pool changes again and again", "%v", err)
	}
	return o, undo, err
}

// planOnce plans an incarnation in the pool that was chosen. If the pool is the cluster's and has no free address, planOnce
// waits for a block for a short time (ground.Await).
func (v *Verbs) planOnce(ctx context.Context, add *addition) (hold.Owner, func(), error) {
	pool, deadline := add.record.Pool, v.ground.Deadline()
	o, undo, err := add.mode.Plan(ctx, hold.NewID(), add.record, add.make)
	for tried := false; answer.Exhausted(err) && v.ground.Await(ctx, pool, add.who(), deadline, tried); tried = true {
		o, undo, err = add.mode.Plan(ctx, hold.NewID(), add.record, add.make)
	}
	if add.record.Further() {
		o.Needs, o.Joined = []hold.ID{add.record.First}, add.joined
	}
	o.Needs = append(o.Needs, v.ground.Needs(o.Names)...)
	switch {
	case err == nil && pool != "":
		v.ground.Served(pool, add.who())
	case answer.Exhausted(err):
		v.ground.Unserved(add.record.Pod, pool, err)
	}
	return o, undo, err
}

// who is whom the node counts as waiting for an address: the runtime tries again for the same pod with another container.
func (a *addition) who() string {
	if a.record.Pod != nil && a.record.Pod.UID != "" {
		return a.record.Pod.UID + "/" + a.record.Network + "/" + a.record.Ifname
	}
	return a.record.Key.String()
}
