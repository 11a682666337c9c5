package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The addresses of the control plane, whose machine shares the network namespace of the test. That has the bridge
// that the nodes are on.
const world4, world6 = "192.0.2.254", "2001:db8::fe"

// The cluster's networks: of pods and of services, both families.
const (
	podCIDRs     = "10.244.0.0/16,fd00:244::/48"
	serviceCIDRs = "10.96.0.0/16,fd00:96::/112"
)

// clusterDNS is the address of the cluster's DNS, which kubelets give to pods. It is there when a test starts one.
const clusterDNS = "10.96.0.10"

// control is the cluster's control plane.
type control struct {
	*machine
	bin    string // folder of the cluster's programs
	ca     []byte // certificate, PEM
	agents string // where Berth's agents reach the API server: HOST:PORT
	client *http.Client

	etcd, api, manager, scheduler *daemon
}

// Users of the API server, each with its own name as its token. The names and groups are those that Kubernetes gives rights to
// (https://kubernetes.io/docs/reference/access-authn-authz/rbac/#default-roles-and-role-bindings); berthd has
// the rights of berthdRights, and berth-operator those of its manifest.
const (
	admin     = "admin"
	manager   = "system:kube-controller-manager"
	scheduler = "system:kube-scheduler"
	proxy     = "system:kube-proxy"
	agent     = "berthd"
	operator  = "berth-operator"
)

// kubeletOf is the user of a node's kubelet.
func kubeletOf(node string) string { return "system:node:" + node }

// startControl starts a control plane without nodes, and returns when the API server is ready.
func startControl(t *testing.T, bin string) *control {
	t.Helper()
	c := newControl(t, bin, nil)
	c.start()
	return c
}

// newControl makes the machine of a control plane for these nodes, on which nothing runs yet.
func newControl(t *testing.T, bin string, nodes []string) *control {
	t.Helper()
	c := &control{machine: startMachine(t, "control", nil), bin: bin, agents: world4 + ":6443"}
	c.certificates()
	c.newClient()
	tokens := []string{admin + ",admin,1,system:masters"}
	for _, user := range []string{manager, scheduler, proxy, agent, operator} {
		tokens = append(tokens, user+","+user+","+user)
	}
	for _, n := range nodes {
		tokens = append(tokens, kubeletOf(n)+","+kubeletOf(n)+","+n+",system:nodes")
	}
	c.write("etc/kubernetes/tokens", strings.Join(tokens, "\n")+"\n")
	for _, user := range []string{admin, manager, scheduler} {
		c.write("etc/kubernetes/"+user, c.kubeconfig(user))
	}
	return c
}

// start starts the control plane's programs, and returns when the API server is ready.
func (c *control) start() {
	c.t.Helper()
	const etcd = "http://127.0.0.1:2379"
	c.etcd = c.daemon(c.program("etcd"), "--data-dir=/var/lib/etcd", "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd, "--listen-peer-urls=http://127.0.0.1:2380")
	c.api = c.daemon(c.program("kube-apiserver"), "--etcd-servers="+etcd,
		"--advertise-address="+world4, "--secure-port=6443", "--service-cluster-ip-range="+serviceCIDRs,
		"--tls-cert-file=/etc/kubernetes/api.crt", "--tls-private-key-file=/etc/kubernetes/api.key",
		"--token-auth-file=/etc/kubernetes/tokens", "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=/etc/kubernetes/accounts.key",
		"--service-account-signing-key-file=/etc/kubernetes/accounts.key", "--allow-privileged",
		"--kubelet-preferred-address-types=InternalIP", "--profiling=false")
	c.api.until("the API server to be ready", c.ready)
	c.apply(berthdRights)
	c.manager = c.daemon(c.program("kube-controller-manager"), "--kubeconfig=/etc/kubernetes/"+manager, "--leader-elect=false",
		"--allocate-node-cidrs", "--cluster-cidr="+podCIDRs, "--service-cluster-ip-range="+serviceCIDRs, "--root-ca-file=/etc/kubernetes/ca.crt",
		"--use-service-account-credentials", "--service-account-private-key-file=/etc/kubernetes/accounts.key",
		"--kube-api-qps=1000", "--kube-api-burst=1000", // by the defaults, the manager takes 4 s to read what there is
		"--profiling=false")
	c.scheduler = c.daemon(c.program("kube-scheduler"), "--kubeconfig=/etc/kubernetes/"+scheduler, "--leader-elect=false", "--profiling=false")
}

func (c *control) program(name string) string { return filepath.Join(c.bin, name) }

// certificates makes the cluster's certificate authority, the API server's certificate, and the key of service accounts.
func (c *control) certificates() {
	c.t.Helper()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(c.t, err)
		return k
	}
	sign := func(cert, parent *x509.Certificate, of, by *ecdsa.PrivateKey) []byte {
		cert.NotBefore, cert.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
		raw, err := x509.CreateCertificate(rand.Reader, cert, parent, &of.PublicKey, by)
		must(c.t, err)
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	}
	text := func(k *ecdsa.PrivateKey) string {
		raw, err := x509.MarshalECPrivateKey(k)
		must(c.t, err)
		return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}))
	}
	authority, server, accounts := key(), key(), key()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	c.ca = sign(ca, ca, authority, authority)
	c.write("etc/kubernetes/ca.crt", string(c.ca))
	c.write("etc/kubernetes/api.crt", string(sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.ParseIP(world4), net.ParseIP(world6), net.ParseIP("127.0.0.1"), net.ParseIP("10.96.0.1")},
	}, ca, server, authority)))
	c.write("etc/kubernetes/api.key", text(server))
	c.write("etc/kubernetes/accounts.key", text(accounts))
}

// kubeconfig is how a user reaches the API server.
func (c *control) kubeconfig(user string) string {
	data, server := base64.StdEncoding.EncodeToString(c.ca), world4+":6443"
	if user == agent {
		server = c.agents
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://%s", certificate-authority-data: %s}}]
users: [{name: test, user: {token: %q}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
`, server, data, user)
}

// kubectl runs kubectl for the cluster's administrator.
func (c *control) kubectl(args ...string) (string, error) {
	return c.run(c.program("kubectl"), append([]string{"--kubeconfig=/etc/kubernetes/" + admin, "--cache-dir=/var/tmp/kubectl"}, args...)...)
}

// mustKubectl is kubectl that may not fail.
func (c *control) mustKubectl(args ...string) string {
	c.t.Helper()
	out, err := c.kubectl(args...)
	must(c.t, err)
	return out
}

// apply makes the objects of a manifest.
func (c *control) apply(manifest string) {
	c.t.Helper()
	c.write("var/tmp/manifest.yaml", manifest)
	c.mustKubectl("apply", "-f", "/var/tmp/manifest.yaml")
}

// berthdRights are what an agent needs of the API server: it reads nodes, says that its own node has a network, and where its responder is, and makes Events.
const berthdRights = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: berthd}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [list, watch]}
- {apiGroups: [""], resources: [nodes/status], verbs: [patch]}
- {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}
- {apiGroups: [""], resources: [pods, namespaces], verbs: [get, list, watch]}
- {apiGroups: [berth.dev], resources: [ippools], verbs: [list, watch]}
- {apiGroups: [berth.dev], resources: [nodenetworks], verbs: [get, list, watch]}
- {apiGroups: [berth.dev], resources: [nodenetworks/status], verbs: [patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: berthd}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: berthd}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: berthd}]
`
