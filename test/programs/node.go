package programs

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// Node is the test's node with an agent, which tests may kill.
type Node struct {
	*Agent
	t testing.TB
}

// RunNode starts an agent with yaml as its configuration.
func RunNode(t testing.TB, bin, yaml string) *Node {
	t.Helper()
	dir := root.Dir(t.TempDir())
	Configure(t, dir, yaml)
	return &Node{Run(t, bin, string(dir)), t}
}

// Configure writes berthd.yaml.
func Configure(t testing.TB, dir root.Dir, yaml string) {
	t.Helper()
	nettest.Must(t, os.MkdirAll(filepath.Dir(dir.Config()), 0o700))
	nettest.Must(t, os.WriteFile(dir.Config(), []byte(yaml), 0o600))
}

// Crash kills the agent with SIGKILL; Again starts a killed agent again.
func (n *Node) Crash() {
	n.t.Helper()
	nettest.Must(n.t, n.Kill())
	n.API.Close()
}

func (n *Node) Again() {
	n.t.Helper()
	nettest.Must(n.t, n.Start(context.Background()))
}

// Exec runs berth-cni for the agent. keys are Conf's keys.
func (n *Node) Exec(verb, container, netns string, keys ...string) ([]byte, error) {
	return Exec(n.bin, n.Root, verb, container, netns, keys...)
}

// List returns an agent's attachments.
func List(t testing.TB, c *client.Client) []api.Attachment {
	t.Helper()
	l, err := c.List(context.Background(), api.Filter{})
	nettest.Must(t, err)
	return l
}

// DetachAll deletes every attachment of an agent.
func DetachAll(t testing.TB, c *client.Client) {
	t.Helper()
	for _, at := range List(t, c) {
		if _, err := c.DeleteOne(context.Background(), at.ID, true); err != nil && !client.IsUnknown(err) {
			t.Errorf("deleting %s: %v", at.ContainerID, err)
		}
	}
}

// Settled waits until the kernel has finished what it does for IPv6 by itself some time
// after a link is up, so that snapshots can be compared.
func Settled(t testing.TB, at *ns.Netns, host string) {
	t.Helper()
	nettest.Eventually(t, "the multicast route of "+host, func() bool {
		return strings.Contains(nettest.Snapshot(t, at).Only("route").String(), "multicast ff00::/8 dev "+host)
	})
}
