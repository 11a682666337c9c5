package apitest

import (
	"context"
	"errors"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/share"
)

// Client is a program's way to a Server.
type Client struct {
	*Server
	Cache *Cache
	// Before is called before each call, and says what becomes of it. nil: all goes well.
	Before func(write bool) Fate
	// Reading is called before each read of the cached NodeNetworks, if it is set.
	Reading func()
	// Lies are bugs to plant: what the caller takes for live or for safe, and is not.
	Lies Lies
	// Events are called with each event.
	Events func(about any, reason, message string)
	// ServiceCIDRs are those of the cluster's services.
	ServiceCIDRs []netip.Prefix

	pools []*v1alpha1.IPPool // as they were before the caller last read the cache
	node  *corev1.Node       // as it was before the caller last read a NodeNetwork
}

// Fate is what becomes of a call.
type Fate int

// Fates of a call.
const (
	Done Fate = iota
	Failed
	Lost // done, and the caller is told that it failed
)

// Lies are planted bugs.
type Lies struct {
	CachedList, CachedGet, CachedNode bool   // live reads that come from the cache
	CachedPool                        string // a pool that comes from the cache, among others that are read live
	PoolsFirst                        bool   // pools that were read before the cached NodeNetworks
	NodeFirst                         bool   // a Node that was read before its NodeNetwork
	BlindPool, BlindNetwork           bool   // writes by the current resourceVersion, whatever the caller has read
	Spoken                            bool   // every agent seems to have written a status
}

var _ share.API = (*Client)(nil)

var errFailed = errors.New("apitest: the server said nothing")

func (c *Client) call(write bool, do func() error) error {
	fate := Done
	if c.Before != nil {
		fate = c.Before(write)
	}
	if fate == Failed {
		return errFailed
	}
	err := do()
	if fate == Lost {
		return errFailed
	}
	return err
}

func (c *Client) CachedNodes(context.Context) (all []*corev1.Node, err error) {
	return list[*corev1.Node](c.Cache.objects), nil
}

func (c *Client) CachedNetworks(context.Context) ([]*v1alpha1.NodeNetwork, error) {
	if c.Lies.PoolsFirst {
		c.pools = List[*v1alpha1.IPPool](c.Server)
	}
	if c.Reading != nil {
		c.Reading()
	}
	return list[*v1alpha1.NodeNetwork](c.Cache.objects), nil
}

func (c *Client) Node(_ context.Context, name string) (n *corev1.Node, err error) {
	if c.Lies.NodeFirst {
		return c.node, nil
	}
	err = c.call(false, func() error {
		if n = Get[*corev1.Node](c.Server, name); c.Lies.CachedNode {
			n = Cached[*corev1.Node](c.Cache, name)
		}
		return nil
	})
	return n, err
}

func (c *Client) Nodes(context.Context) (all []*corev1.Node, err error) {
	err = c.call(false, func() error {
		all = List[*corev1.Node](c.Server)
		return nil
	})
	return all, err
}

func (c *Client) Network(_ context.Context, name string) (n *v1alpha1.NodeNetwork, err error) {
	if c.Lies.NodeFirst {
		if err := c.call(false, func() error { c.node = Get[*corev1.Node](c.Server, name); return nil }); err != nil {
			return nil, err
		}
	}
	err = c.call(false, func() error {
		if n = Get[*v1alpha1.NodeNetwork](c.Server, name); c.Lies.CachedGet {
			n = Cached[*v1alpha1.NodeNetwork](c.Cache, name)
		}
		return nil
	})
	return n, err
}

func (c *Client) Networks(context.Context) (all []*v1alpha1.NodeNetwork, err error) {
	err = c.call(false, func() error {
		if all = List[*v1alpha1.NodeNetwork](c.Server); c.Lies.CachedList {
			all = list[*v1alpha1.NodeNetwork](c.Cache.objects)
		}
		return nil
	})
	if c.Lies.Spoken {
		for i := range all {
			all[i] = all[i].DeepCopy()
			all[i].Status.Addresses = []string{"192.0.2.1"}
		}
	}
	return all, err
}

func (c *Client) Pools(context.Context) (all []*v1alpha1.IPPool, err error) {
	if c.Lies.PoolsFirst {
		return c.pools, nil
	}
	err = c.call(false, func() error {
		all = List[*v1alpha1.IPPool](c.Server)
		for i, p := range all {
			if p.Name == c.Lies.CachedPool {
				all[i] = Cached[*v1alpha1.IPPool](c.Cache, p.Name)
			}
		}
		return nil
	})
	return all, err
}

func (c *Client) Services(context.Context) ([]netip.Prefix, error) { return c.ServiceCIDRs, nil }

func (c *Client) CreateNetwork(_ context.Context, n *v1alpha1.NodeNetwork) error {
	return c.call(true, func() error { return c.Create(n) })
}

func (c *Client) UpdateNetwork(_ context.Context, n *v1alpha1.NodeNetwork) error {
	return c.call(true, func() error {
		if now := Get[*v1alpha1.NodeNetwork](c.Server, n.Name); c.Lies.BlindNetwork && now != nil {
			blind(n, now)
		}
		return c.Update(n, false)
	})
}

func (c *Client) UpdatePool(_ context.Context, p *v1alpha1.IPPool) error {
	return c.call(true, func() error { return c.Update(p, false) })
}

func (c *Client) UpdatePoolStatus(_ context.Context, p *v1alpha1.IPPool) error {
	return c.call(true, func() error {
		if now := Get[*v1alpha1.IPPool](c.Server, p.Name); c.Lies.BlindPool && now != nil {
			blind(p, now)
		}
		return c.Update(p, true)
	})
}

// blind lets a write pass whatever its writer has read.
func blind(o, now metav1.Object) {
	o.SetResourceVersion(now.GetResourceVersion())
	o.SetUID(now.GetUID())
}

func (c *Client) DeleteNetwork(_ context.Context, name string, uid types.UID) error {
	return c.call(true, func() error { return c.Delete(&v1alpha1.NodeNetwork{}, name, uid) })
}

// Event passes an event on.
func (c *Client) Event(about any, reason, message string) {
	if c.Events != nil {
		c.Events(about, reason, message)
	}
}
