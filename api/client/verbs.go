package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
)

// IsUnknown reports whether err is an agent's answer that nothing that the request names is
// in its ledger.
func IsUnknown(err error) bool {
	var e *api.Error
	return errors.As(err, &e) && e.Code == cni.CodeUnknown
}

// Add makes an attachment and returns its CNI result, in the version of the
// request's config.
func (c *Client) Add(ctx context.Context, req api.AddRequest) (json.RawMessage, error) {
	var result json.RawMessage
	err := c.do(ctx, "POST", api.PathAttachments, nil, req, &result)
	return result, err
}

// Check compares an attachment with its config's prevResult and the world.
func (c *Client) Check(ctx context.Context, req api.AddRequest) error {
	return c.do(ctx, "POST", api.PathCheck, nil, req, nil)
}

// GC releases all attachments of a network but the valid ones.
func (c *Client) GC(ctx context.Context, req api.GCRequest) (api.Deleted, error) {
	var d api.Deleted
	err := c.do(ctx, "POST", api.PathGC, nil, req, &d)
	return d, err
}

// Adopt adopts what a former CNI of the node has attached.
func (c *Client) Adopt(ctx context.Context, req api.AdoptRequest) (api.Adopted, error) {
	var d api.Adopted
	err := c.do(ctx, "POST", api.PathAdopt, nil, req, &d)
	return d, err
}

// Ready asks whether the networks of a configuration are ready for pods. An error of code 50 or 51 says which is not.
func (c *Client) Ready(ctx context.Context, req api.StatusRequest) error {
	return c.do(ctx, "POST", api.PathStatus, nil, req, nil)
}

// List returns the attachments that a filter matches.
func (c *Client) List(ctx context.Context, f api.Filter) ([]api.Attachment, error) {
	var list []api.Attachment
	err := c.do(ctx, "GET", api.PathAttachments, values(f), nil, &list)
	return list, err
}

// Get returns one attachment. If there is none of this ID, IsUnknown reports true for the
// error.
func (c *Client) Get(ctx context.Context, id string) (api.Attachment, error) {
	var a api.Attachment
	err := c.do(ctx, "GET", api.PathAttachments+"/"+id, nil, nil, &a)
	return a, err
}

// Delete releases the attachments that a filter matches. The filter has to name a
// container, or a namespace and a pod. With wait, Delete returns when all is gone or the
// deadline is near (see api.Deleted); without, once the release is promised. If no attachment
// matches, IsUnknown reports true for the error.
func (c *Client) Delete(ctx context.Context, f api.Filter, wait bool) (api.Deleted, error) {
	var d api.Deleted
	err := c.do(ctx, "DELETE", api.PathAttachments, waiting(values(f), wait), nil, &d)
	return d, err
}

// DeleteOne is Delete for one attachment.
func (c *Client) DeleteOne(ctx context.Context, id string, wait bool) (api.Deleted, error) {
	var d api.Deleted
	err := c.do(ctx, "DELETE", api.PathAttachments+"/"+id, waiting(url.Values{}, wait), nil, &d)
	return d, err
}

// Status returns the agent's status. An error of code 50 or 51 says that no attachment can
// be made in pool ("": the default pool); the status is complete all the same.
func (c *Client) Status(ctx context.Context, pool string) (api.Status, error) {
	q := url.Values{}
	if pool != "" {
		q.Set("pool", pool)
	}
	var st api.Status
	err := c.do(ctx, "GET", api.PathStatus, q, nil, &st)
	return st, err
}

// Pools returns the pools' figures.
func (c *Client) Pools(ctx context.Context) ([]api.Pool, error) {
	var pools []api.Pool
	err := c.do(ctx, "GET", api.PathPools, nil, nil, &pools)
	return pools, err
}

// Ledger returns what the agent's ledger says.
func (c *Client) Ledger(ctx context.Context) (api.Ledger, error) {
	var l api.Ledger
	err := c.do(ctx, "GET", api.PathLedger, nil, nil, &l)
	return l, err
}

// Audit has the agent compare its ledger with the world.
func (c *Client) Audit(ctx context.Context) (api.Audit, error) {
	var audit api.Audit
	err := c.do(ctx, "GET", api.PathAudit, nil, nil, &audit)
	return audit, err
}

// AuditPods is Audit with a look into the attached pods.
func (c *Client) AuditPods(ctx context.Context) (api.Audit, error) {
	var audit api.Audit
	err := c.do(ctx, "GET", api.PathAudit, url.Values{"pods": {"true"}}, nil, &audit)
	return audit, err
}

// Owed returns what could not be released yet, and deletions that wait.
func (c *Client) Owed(ctx context.Context) (api.OwedList, error) {
	var list api.OwedList
	err := c.do(ctx, "GET", api.PathOwed, nil, nil, &list)
	return list, err
}

// ClusterPods has the agent ask the API server which pods this node has.
func (c *Client) ClusterPods(ctx context.Context) (api.ClusterPods, error) {
	var p api.ClusterPods
	err := c.do(ctx, "GET", api.PathPods, nil, nil, &p)
	return p, err
}

// Nodes returns which nodes of the cluster the agent's node reaches.
func (c *Client) Nodes(ctx context.Context) (api.ClusterHealth, error) {
	var h api.ClusterHealth
	err := c.do(ctx, "GET", api.PathNodes, nil, nil, &h)
	return h, err
}

// RetryOwed has the agent try at once to release what the owners with these ids owe or,
// without ids, all that is owed. RetryOwed does not wait for the tries.
func (c *Client) RetryOwed(ctx context.Context, ids ...string) (api.Retried, error) {
	var tried api.Retried
	err := c.do(ctx, "POST", api.PathOwedRetry, nil, api.RetryRequest{IDs: ids}, &tried)
	return tried, err
}

// Health says whether the agent serves requests already.
func (c *Client) Health(ctx context.Context) (api.Health, error) {
	var h api.Health
	err := c.do(ctx, "GET", api.PathHealth, nil, nil, &h)
	return h, err
}

// Metrics returns the agent's metrics, in Prometheus's text format.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	resp, err := c.send(ctx, "GET", api.PathMetrics, nil, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, c.broken(ctx, err)
	}
	if resp.StatusCode >= 400 {
		return nil, failure(resp.StatusCode, raw, nil)
	}
	return raw, nil
}

// values returns a filter as a query.
func values(f api.Filter) url.Values {
	q := url.Values{}
	for name, value := range map[string]string{
		"network": f.Network, "container": f.Container, "ifname": f.Ifname,
		"namespace": f.Namespace, "pod": f.Pod, "uid": f.UID,
		"address": f.Address, "state": f.State, "link": f.Link,
	} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q
}

func waiting(q url.Values, wait bool) url.Values {
	if wait {
		q.Set("wait", "true")
	}
	return q
}
