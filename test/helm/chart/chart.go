// Package chart renders Berth's Helm chart (deploy/helm/berth) by Helm itself. It is in a module of its own, so that Berth does not
// need what Helm needs.
package chart

import (
	"fmt"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/release"
)

// Manifest is a plain manifest, for people who do not use Helm.
type Manifest struct {
	File   string // in deploy/kubernetes
	header string // what it begins with
	values map[string]any
}

// Manifests are all plain manifests.
var Manifests = []Manifest{{
	File: "berth.yaml",
	header: `# Berth as the network of a Kubernetes cluster: kubectl apply -f berth.yaml
#
# This is the chart deploy/helm/berth with its default values. ` + "`make manifests`" + ` writes it: change the chart instead.
#
# Each node's pods get the addresses that the cluster gives to the node (Node.spec.podCIDRs), so the cluster's controller
# manager needs --allocate-node-cidrs and --cluster-cidr, as kubeadm sets them with --pod-network-cidr, and k3s by itself.
# kube-proxy, or what takes its place, has to run on the nodes.
#
# When the DaemonSet goes, or its pods are replaced, the plugin and its configuration stay on the nodes, and so do the pods'
# networks: pods can be deleted without an agent. docs/KUBERNETES.md says how to take Berth away.
`}, {
	File: "pools.yaml",
	header: `# Berth as the network of a Kubernetes cluster whose nodes share pools of addresses (IPPool):
# kubectl apply --server-side -f pools.yaml
#
# This is the chart deploy/helm/berth with the value pools.enabled. ` + "`make manifests`" + ` writes it: change the chart instead. It has all
# that berth.yaml has, the definitions of IPPool and NodeNetwork, and the operator, which shares the pools out to the nodes. Nodes
# get addresses when there is a pool: docs/KUBERNETES.md has one.
`,
	values: map[string]any{"pools": map[string]any{"enabled": true}},
}, {
	File: "networks.yaml",
	header: `# Berth as the network of a Kubernetes cluster whose pods may ask for further networks, which other CNI plugins make:
# kubectl apply -f networks.yaml
#
# This is the chart deploy/helm/berth with the value networks.enabled. ` + "`make manifests`" + ` writes it: change the chart instead. It has all
# that berth.yaml has, the definition of NetworkAttachmentDefinition, which a cluster with Multus has already, and berth-runner, which
# runs the plugins and is root on the nodes.
`,
	values: map[string]any{"networks": map[string]any{"enabled": true}},
}}

// Text renders a plain manifest of the chart in a folder.
func (m Manifest) Text(dir string) (string, error) {
	r, err := Render(dir, "kube-system", m.values)
	if err != nil {
		return "", err
	}
	return m.header + r.plain(), nil
}

// kubernetes is the version of the cluster for which charts are rendered: that of test/cluster.
const kubernetes = "v1.36.3"

// Rendered is a chart as Helm would install it.
type Rendered struct {
	Manifest string // its objects, in the order in which Helm makes them
	Notes    string
}

// Render renders the chart in a folder for a namespace. The values go before the chart's own.
func Render(dir, namespace string, values map[string]any) (r Rendered, err error) {
	c, err := loader.Load(dir)
	if err != nil {
		return r, fmt.Errorf("loading the chart: %w", err)
	}
	install := action.NewInstall(action.NewConfiguration())
	install.DryRunStrategy = action.DryRunClient
	if install.KubeVersion, err = common.ParseKubeVersion(kubernetes); err != nil {
		return r, fmt.Errorf("reading the version of Kubernetes: %w", err)
	}
	install.ReleaseName, install.Namespace = "berth", namespace
	made, err := install.Run(c, values)
	if err != nil {
		return r, fmt.Errorf("rendering the chart: %w", err)
	}
	of, err := release.NewAccessor(made)
	if err != nil {
		return r, fmt.Errorf("reading the release: %w", err)
	}
	return Rendered{Manifest: of.Manifest(), Notes: of.Notes()}, nil
}

// plain returns the objects without what Helm writes about their templates.
func (r Rendered) plain() string {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimPrefix(r.Manifest, "---\n")) {
		line = strings.TrimRight(line, " \n")
		if line != "" && !strings.HasPrefix(line, "# Source: ") { // of Helm's: the file of the object's template
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}
