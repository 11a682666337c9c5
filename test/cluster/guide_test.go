package cluster

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// guide is the section "Migrate from flannel or kindnet" of docs/KUBERNETES.md. A test follows its commands as they stand there.
type guide struct {
	*cluster
	section string
	helm    string // folder of Helm
	network string // $NETWORK: how kubectl calls the DaemonSet of the old network
}

// openGuide reads the guide for a cluster whose old network is that DaemonSet.
func openGuide(c *cluster, network, helm string) *guide {
	c.t.Helper()
	doc, err := os.ReadFile(filepath.Join(programs.Tree(c.t), "docs/KUBERNETES.md"))
	must(c.t, err)
	_, section, found := strings.Cut(string(doc), "\n## Migrate from flannel or kindnet\n")
	if !found {
		c.t.Fatal("docs/KUBERNETES.md has no guide")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	return &guide{cluster: c, section: section, helm: filepath.Dir(helm), network: network}
}

// commands returns the guide's commands that stand together with this text.
func (g *guide) commands(with string) (found string) {
	g.t.Helper()
	for i, part := range strings.Split(g.section, "```sh\n") {
		if block, _, _ := strings.Cut(part, "```"); i > 0 && strings.Contains(block, with) {
			if found != "" {
				g.t.Fatalf("the guide has %q twice", with)
			}
			found = block
		}
	}
	if found == "" {
		g.t.Fatalf("the guide has no commands with %q", with)
	}
	return found
}

// follow runs the guide's commands that have this text, as the cluster's administrator in a clone of Berth, and returns what they print. $NODE is
// the name of n, unless it is nil.
func (g *guide) follow(with string, n *node) string {
	g.t.Helper()
	script := "set -e\ncd " + programs.Tree(g.t) + "\nexport KUBECONFIG=/etc/kubernetes/" + admin + " PATH=" + g.bin + ":" + g.helm + ":$PATH\nNETWORK='" + g.network + "'\n"
	if n != nil {
		script += "NODE=" + n.name + "\n"
	}
	script += strings.Replace(g.commands(with), "helm install ", "helm install "+chartImage+" ", 1)
	return g.mustRun("/bin/sh", "-c", script)
}

// followOn runs the guide's commands that have this text on a node. They may fail.
func (g *guide) followOn(n *node, with string) {
	g.t.Helper()
	for _, name := range []string{"iptables", "ip6tables"} { // as Debian has them
		link := filepath.Join(n.disk, "etc/alternatives", name)
		must(g.t, os.MkdirAll(filepath.Dir(link), 0o755))
		if err := os.Symlink("/usr/sbin/"+name+"-nft", link); err != nil && !os.IsExist(err) {
			g.t.Fatal(err)
		}
	}
	said, err := n.run("/bin/sh", "-c", "exec 2>&1; PATH=$PATH:/usr/sbin\n"+g.commands(with))
	g.t.Logf("on %s: %v\n%s", n.name, err, said)
}

// migrate takes a node to Berth. clean is in the commands of the guide that remove the old network from the node.
func (g *guide) migrate(n *node, clean string) {
	g.t.Helper()
	g.follow("kubectl drain", n)
	nettest.Eventually(g.t, n.name+" to have no pods of the old network", func() bool {
		return !strings.Contains(g.follow("kubectl get pods -A", n), "<none>")
	})
	g.follow("kubectl label node $NODE", n)
	g.followOn(n, clean)
	g.follow("kubectl uncordon", n)
	g.t.Logf("%s has Berth", n.name)
}

// eachNode is the manifest of a DaemonSet, whose pods no draining moves.
func eachNode(name string) string {
	deployment := deployment(name, 0, 0)
	_, template, _ := strings.Cut(deployment, "  selector:")
	template, spread, _ := strings.Cut(template, "      topologySpreadConstraints:\n")
	_, containers, _ := strings.Cut(spread, "\n")
	return "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: " + name + "}\nspec:\n  selector:" + template + containers
}

// takeAway takes Berth from all nodes, which have no pods, as the guide does from one.
func (c *cluster) takeAway(t *testing.T) {
	t.Helper()
	c.mustKubectl("label", "nodes", "--all", "berth.dev/agent=no", "--overwrite")
	for _, n := range c.nodes {
		nettest.Eventually(t, "the agent of "+n.name+" to have gone", func() bool { return c.agentPod(n) == "" })
		c.apply(strings.ReplaceAll(manifest(t, "remove.yaml"), "NODE", n.name))
	}
	for _, n := range c.nodes {
		c.mustKubectl("wait", "--namespace=kube-system", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s", "pod/berth-remove-"+n.name)
	}
	c.mustKubectl("delete", "pods", "--namespace=kube-system", "-l", "app.kubernetes.io/name=berth-remove")
}

// ofNetworks is what the oracle sees on a node, without what changes or stays there for other reasons: kube-proxy's rules, and
// forwarding, with the routes that the kernel makes for it.
func (n *node) ofNetworks() nettest.State {
	n.t.Helper()
	state := n.state().But([]string{"nft table ip kube-proxy", "nft table ip6 kube-proxy", "sysctl ", "route inet6 anycast "})
	for _, dir := range []string{"etc/cni", "opt/cni", "run/flannel", "run/cni-ipam-state", "var/lib/cni/networks", "var/lib/cni/flannel"} {
		state = state.And(nettest.Files(n.t, filepath.Join(n.disk, dir)))
	}
	return state
}

// ofIptables are the tables and chains that the command itself makes as soon as it is asked for a rule. Rules are lines of their own.
var ofIptables = regexp.MustCompile(`(?m)^\+nft table ip6? (nat|filter)( chain [A-Z]+ \{ type .*)?\n`)

// takesOver has a network start, and takes the cluster to Berth, node by node. first is in commands that the guide has before its steps,
// clean is in those that remove the old network from a node, and marks are in the names of all that it has there. Meanwhile all pods reach each
// other, whichever network their nodes have, and Services lead to all of them. In the end nothing of the old network is on any node, and
// Berth owes nothing; when Berth has been taken away as well, each node is as it was before it had a network.
func (g *guide) takesOver(t *testing.T, start func(t *testing.T), first, clean, marks string) {
	c := g.cluster
	t.Helper()
	c.loadPlugins(t)
	var bare []nettest.State
	for _, n := range c.nodes {
		bare = append(bare, n.ofNetworks())
	}
	start(t)
	c.apply(eachNode("each"))
	c.reach(c.deploy("web", 6, 0))
	if first != "" {
		g.follow(first, nil)
		c.reach(c.pods("web"))
	}
	g.follow("helm install", nil)
	for i, n := range c.nodes {
		g.migrate(n, clean)
		web := c.settle("with Berth on "+n.name, "web", 6)
		c.reach(append(c.settle("with Berth on "+n.name, "each", 3), web...))
		if has := regexp.MustCompile("(?m)^.*("+marks+").*$").FindAllString(n.ofNetworks().String(), -1); has != nil {
			t.Errorf("%s still has %s", n.name, strings.Join(has, "\n"))
		}
		if i == 0 {
			c.servicesLead(web)
		}
	}
	g.follow("kubectl delete $NETWORK", nil)
	for _, n := range c.nodes {
		n.berth("audit")
	}
	c.mustKubectl("delete", "deployment/web", "daemonset/each", "--cascade=foreground", "--timeout=60s")
	c.takeAway(t)
	for i, n := range c.nodes {
		if diff := ofIptables.ReplaceAllString(bare[i].Diff(n.ofNetworks())+"\n", ""); strings.TrimSpace(diff) != "" {
			t.Errorf("%s is not as it was before it had a network:\n%s", n.name, diff)
		}
	}
}
