package notice

import (
	"errors"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/ipam"
)

// Reasons of Events about pods.
const (
	AddressesExhausted = "AddressesExhausted" // the pool of the pod has no address left on the node
	NoAddressYet       = "NoAddressYet"       // the node has no block of the pool yet, or there is no default pool
	PoolRefused        = "PoolRefused"        // the pod asks for a pool that is not there, or not for it
)

func podObject(p *api.Pod) Object {
	return Object{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

// Unserved returns what people are told of a pod that has got no address, as err says. pool is the pool that the pod was to get one of;
// "": none was chosen. short says why the whole cluster has no more of that pool; "": it may have.
func Unserved(p *api.Pod, pool, short string, err error) Notice {
	n := Notice{About: podObject(p), Reason: PoolRefused, Action: "Attach", Of: pool}
	var full *ipam.ExhaustedError
	var numbered *api.Error
	switch {
	case errors.As(err, &full):
		n.Reason, n.Of = AddressesExhausted, full.Pool
	case errors.As(err, &numbered) && numbered.Code == cni.CodeTryAgain && short != "":
		n.Reason = AddressesExhausted
	case errors.As(err, &numbered) && numbered.Code == cni.CodeTryAgain:
		n.Reason = NoAddressYet
	}
	if n.Reason == PoolRefused {
		n.Of = err.Error()
	}
	n.Text = "Berth gives the pod no address: " + err.Error()
	if short != "" {
		n.Text += "; " + short
	}
	return n
}
