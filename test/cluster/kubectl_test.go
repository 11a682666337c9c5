package cluster

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/test/programs"
)

// plugin runs `kubectl berth` for the cluster's administrator.
func (c *control) plugin(args ...string) (string, error) {
	c.t.Helper()
	dir := c.t.TempDir()
	must(c.t, os.Symlink(filepath.Join(programs.Own(c.t), "berth"), filepath.Join(dir, "kubectl-berth")))
	call := []string{"PATH=" + dir + ":" + c.bin + ":/usr/bin:/bin", "HOME=/var/tmp", "KUBECONFIG=/etc/kubernetes/" + admin, "kubectl", "berth"}
	return c.run("/usr/bin/env", append(call, args...)...)
}

// asksAgents asks all agents, and the agent of a pod's node, by kubectl's plugin.
func (c *cluster) asksAgents() {
	c.t.Helper()
	out, err := c.plugin("audit", "-o", "json")
	must(c.t, err)
	var audits map[string]api.Audit
	must(c.t, json.Unmarshal([]byte(out), &audits))
	for _, n := range c.nodes {
		if a := audits[n.name]; a.Owners == 0 || len(a.Findings) > 0 {
			c.t.Errorf("the audit of %s finds %+v", n.name, a)
		}
	}
	p := c.pods("web")[0]
	out, err = c.plugin("show", "default/"+p.Metadata.Name)
	must(c.t, err)
	if !strings.Contains(out, p.Metadata.Name) {
		c.t.Errorf("kubectl berth show says\n%s", out)
	}
	if out, err = c.plugin("--node", "n9", "status"); err == nil || !strings.Contains(err.Error(), "node n9 has no agent") {
		c.t.Errorf("of a node that is none, kubectl berth says %s, %v", out, err)
	}
}
