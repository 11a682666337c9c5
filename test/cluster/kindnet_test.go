package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

const kindnetImage = "localhost/kindnet:test"

// kindnetManifest has a kindnetd on each node, as kind's own manifest does: its command is the image's /bin/kindnetd.
const kindnetManifest = `apiVersion: v1
kind: ServiceAccount
metadata: {name: kindnet, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: kindnet}
rules: [{apiGroups: [""], resources: [nodes], verbs: [list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kindnet}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: kindnet}
subjects: [{kind: ServiceAccount, name: kindnet, namespace: kube-system}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kindnet, namespace: kube-system}
spec:
  selector: {matchLabels: {app: kindnet}}
  template:
    metadata: {labels: {app: kindnet}}
    spec:
      hostNetwork: true
      serviceAccountName: kindnet
      tolerations: [{operator: Exists}]
      containers:
      - name: kindnet-cni
        image: ` + kindnetImage + `
        imagePullPolicy: Never
        command: [/bin/kindnetd]
        env:
        - {name: HOST_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        - {name: POD_SUBNET, value: "` + podCIDRs + `"}
        securityContext: {privileged: false, capabilities: {add: [NET_RAW, NET_ADMIN]}}
        volumeMounts:
        - name: run
          mountPath: /run/xtables
        - {name: cni-cfg, mountPath: /etc/cni/net.d}
      volumes:
      - name: run
        hostPath: {path: /run/xtables}
      - {name: cni-cfg, hostPath: {path: /etc/cni/net.d}}
`

// standIn does on each node what kindnetd does there: the network's configuration, the routes to other nodes' pods, and the rules for
// masquerading. kindnetd itself is no module that the Go proxy has; $KINDNETD names one.
func (c *cluster) standIn() string {
	c.t.Helper()
	script := "#!/bin/sh\nset -e\n"
	for _, n := range c.nodes {
		var cidrs []string
		nettest.Eventually(c.t, n.name+" to have CIDRs", func() bool { cidrs = c.cidrs(n.name); return len(cidrs) == 2 })
		script += fmt.Sprintf(`if test $HOST_IP = %[1]s; then
	echo '{"cniVersion": "0.3.1", "name": "kindnet", "plugins": [{"type": "ptp", "ipMasq": false, "mtu": 1500, "ipam": {"type": "host-local",
		"dataDir": "/run/cni-ipam-state", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}], "ranges": [[{"subnet": "%[3]s"}], [{"subnet": "%[4]s"}]]}},
		{"type": "portmap", "capabilities": {"portMappings": true}}]}' >/etc/cni/net.d/10-kindnet.conflist.temp
	mv /etc/cni/net.d/10-kindnet.conflist.temp /etc/cni/net.d/10-kindnet.conflist
else
	ip route replace %[3]s via %[1]s
	ip -6 route replace %[4]s via %[2]s
fi
`, n.address4(), n.address6(), cidrs[0], cidrs[1])
	}
	cidr4, cidr6, _ := strings.Cut(podCIDRs, ",")
	return script + `rules() {
	$1 -t nat -N KIND-MASQ-AGENT || return 0
	$1 -t nat -A KIND-MASQ-AGENT -d $2 -m comment --comment "kind-masq-agent: local traffic is not subject to MASQUERADE" -j RETURN
	$1 -t nat -A KIND-MASQ-AGENT -m comment --comment "kind-masq-agent: outbound traffic is subject to MASQUERADE (must be last in chain)" -j MASQUERADE
	$1 -t nat -A POSTROUTING -m addrtype ! --dst-type LOCAL -m comment --comment "kind-masq-agent: ensure nat POSTROUTING directs all non-LOCAL destination traffic to our custom KIND-MASQ-AGENT chain" -j KIND-MASQ-AGENT
}
rules iptables ` + cidr4 + `
rules ip6tables ` + cidr6 + `
trap 'exit 0' TERM
while :; do sleep 1 & wait $!; done
`
}

// startKindnet gives the cluster a network as kindnet does: by CNI's plugins ptp, host-local and portmap, and by $KINDNETD or a stand-in for it.
func (c *cluster) startKindnet(t *testing.T) {
	t.Helper()
	program := []byte(c.standIn())
	if real := os.Getenv("KINDNETD"); real != "" {
		raw, err := os.ReadFile(real)
		must(t, err)
		program = raw
	}
	image := filepath.Join(t.TempDir(), "kindnet.tar")
	must(t, programs.Image{Name: kindnetImage, Path: "/bin:/usr/sbin:/usr/bin", Files: append(append(programs.Busybox(t, "sh", "ip", "mv", "sleep"), iptablesLinks()...),
		programs.File{Name: "bin/kindnetd", Mode: 0o755, Content: program})}.Write(image))
	for _, n := range c.nodes {
		n.load(image)
	}
	c.apply(mountSystem(kindnetManifest))
	c.mustKubectl("rollout", "status", "--namespace=kube-system", "daemonset/kindnet", "--timeout=120s")
	for _, n := range c.nodes {
		c.waitReady(n)
	}
}

// A cluster of kindnet is taken to Berth by the guide, as one of flannel is.
func TestMigrateFromKindnet(t *testing.T) {
	c, helm := startEmpty(t, 3)
	g := openGuide(c, "-n kube-system daemonset/kindnet", helm)
	g.takesOver(t, c.startKindnet, "", "KIND-MASQ-AGENT", `KIND-MASQ|kindnet`)
}
