package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kube/kubetest"
)

// clusterAPI is a cluster's simulated API server, in this process.
type clusterAPI struct {
	*kubetest.Server
	http *http.Server
}

func newClusterAPI() *clusterAPI {
	s := &clusterAPI{Server: kubetest.New()}
	s.http = &http.Server{Handler: s}
	return s
}

// listen serves those who are in a network namespace, on its loopback; nil is the process's own.
func (s *clusterAPI) listen(at *ns.Netns) (url string, err error) {
	var l net.Listener
	err = inside(at, func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		return "", err
	}
	go func() { _ = s.http.Serve(l) }() // ends with close
	return "http://" + l.Addr().String(), nil
}

func (s *clusterAPI) close() { _ = s.http.Close() } // nothing is left to do about an error

// inside calls f in a network namespace; nil is the process's own.
func inside(at *ns.Netns, f func() error) error {
	if at == nil {
		return f()
	}
	return at.Do(f)
}

// inCluster writes the configuration of an agent that is a node of a cluster. keys are further ones of its part of berthd.yaml.
func inCluster(root, node, url, keys string) error {
	etc := filepath.Join(root, "etc", "berth")
	kubeconfig, err := writeKubeconfig(etc, url)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(etc, "berthd.yaml"),
		fmt.Appendf(nil, "kubernetes: {node: %s, kubeconfig: %s, %s}\n", node, kubeconfig, keys), 0o600)
}

// writeKubeconfig writes a file into a folder that says how an API server is reached.
func writeKubeconfig(folder, url string) (path string, err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", err
	}
	path = filepath.Join(folder, "kubeconfig")
	return path, os.WriteFile(path, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: %q}}], contexts: [{name: c, context: {cluster: c}}]}`, url), 0o600)
}

// clusterNode returns node number i of a cluster of many: its address and its pods' CIDR follow from i.
func clusterNode(i int) corev1.Node {
	return node(fmt.Sprintf("node-%d", i), []string{clusterCIDR(i)}, fmt.Sprintf("10.64.%d.%d", i>>8, i&255))
}

func clusterCIDR(i int) string { return fmt.Sprintf("10.%d.%d.0/24", 128+i>>8, i&255) }

// node returns a Node.
func node(name string, cidrs []string, addresses ...string) corev1.Node {
	n := corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}}
	n.Name = name
	n.Spec.PodCIDRs = cidrs
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}
