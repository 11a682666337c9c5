//go:build e2e

package cluster

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-net/berth/test/programs"
)

// dnsImage is the image of the cluster's DNS: test/cluster/dns.
const dnsImage = "berth.test/coredns:1"

// dnsManifest is a cluster's DNS as kubeadm makes it: two CoreDNS behind the Service kube-dns, whose address the kubelets give
// to pods. It asks nobody else, because the cluster has no world beyond itself, and keeps no answers, because specs change them.
const dnsManifest = `apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: system:coredns}
rules:
- {apiGroups: [""], resources: [services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system:coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:coredns}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    .:53 {
        errors
        ready
        kubernetes cluster.local in-addr.arpa ip6.arpa
        loadbalance
    }
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system}
spec:
  replicas: 2
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      serviceAccountName: coredns
      dnsPolicy: Default
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {k8s-app: kube-dns}}}
      containers:
      - name: coredns
        image: ` + dnsImage + `
        imagePullPolicy: Never
        args: [-conf, /etc/coredns/Corefile]
        readinessProbe: {httpGet: {port: 8181, path: /ready}, periodSeconds: 1}
        volumeMounts: [{name: config, mountPath: /etc/coredns}]
      volumes: [{name: config, configMap: {name: coredns}}]
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: ` + clusterDNS + `
  selector: {k8s-app: kube-dns}
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
`

// startDNS runs the cluster's DNS, on Berth's pods.
func (c *cluster) startDNS(t *testing.T) {
	t.Helper()
	content, err := os.ReadFile(c.program("coredns"))
	must(t, err)
	image := filepath.Join(t.TempDir(), "coredns.tar")
	must(t, programs.Image{Name: dnsImage, Entrypoint: []string{"/coredns"}, Files: []programs.File{{Name: "coredns", Mode: 0o755, Content: content}}}.Write(image))
	for _, n := range c.nodes {
		n.load(image)
	}
	c.apply(dnsManifest)
	c.mustKubectl("rollout", "status", "--namespace=kube-system", "deployment/coredns", "--timeout=60s")
}

// stopDNS removes the cluster's DNS, and returns when its pods are gone.
func (c *cluster) stopDNS() {
	c.t.Helper()
	c.mustKubectl("delete", "--namespace=kube-system", "service/kube-dns", "deployment/coredns", "--cascade=foreground", "--timeout=60s")
}
