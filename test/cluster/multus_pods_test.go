package cluster

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/berth-net/berth/internal/nad"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/beside"
)

// besidePlugins are the reference plugins that the definitions of the comparison name.
var besidePlugins = []string{"bandwidth", "bridge", "host-local", "macvlan", "portmap", "ptp", "static", "tuning"}

// local is the ipam of a network with addresses of host-local in 10.50.N.0/24, and these routes.
func local(n int, routes ...string) string {
	dst := ""
	for _, r := range routes {
		dst += fmt.Sprintf(`,{"dst":%q}`, r)
	}
	return fmt.Sprintf(`"ipam":{"type":"host-local","ranges":[[{"subnet":"10.50.%d.0/24"}]],"routes":[%s]}`, n, strings.TrimPrefix(dst, ","))
}

// besideNetworks are the definitions of the comparison: of the default network, and of those that pods ask for.
var besideNetworks = map[string]string{
	"kube-system/main": `{"cniVersion":"1.0.0","name":"main","plugins":[{"type":"ptp","mtu":1400,"dns":{"nameservers":["192.0.2.53"]},` + local(0, "0.0.0.0/0") + `},` +
		`{"type":"portmap","capabilities":{"portMappings":true}}]}`,
	"kube-system/second": `{"cniVersion":"1.0.0","name":"second","type":"ptp",` + local(1, "0.0.0.0/0") + `}`,

	"ptp":     `{"cniVersion":"1.0.0","name":"ptp-net","type":"ptp",` + local(2) + `}`,
	"bridge":  `{"cniVersion":"1.0.0","type":"bridge","bridge":"br9","mtu":1300,` + local(3, "192.168.0.0/16") + `}`,
	"macvlan": `{"cniVersion":"1.0.0","name":"macvlan","type":"macvlan","master":"lan","mode":"bridge","capabilities":{"mac":true},` + local(4) + `}`,
	"tuned": `{"cniVersion":"1.0.0","name":"tuned","plugins":[{"type":"bridge","bridge":"br9",` + local(5) + `},` +
		`{"type":"tuning","capabilities":{"mac":true},"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}}]}`,
	"ips":    `{"cniVersion":"1.0.0","name":"ips","type":"bridge","bridge":"br9","capabilities":{"ips":true},"ipam":{"type":"static"}}`,
	"static": `{"cniVersion":"1.0.0","name":"static","type":"macvlan","master":"lan","ipam":{"type":"static","addresses":[{"address":"10.50.6.9/24","gateway":"10.50.6.1"}],"routes":[{"dst":"172.16.0.0/12"}]}}`,
	"dual":   `{"cniVersion":"1.0.0","name":"dual","type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.50.7.0/24"}],[{"subnet":"fd00:50:7::/64"}]],"routes":[{"dst":"fd00:99::/64"}]}}`,
	"noipam": `{"cniVersion":"1.0.0","name":"noipam","type":"macvlan","master":"lan"}`,
	"shaped": `{"cniVersion":"1.0.0","name":"shaped","plugins":[{"type":"ptp",` + local(8) + `},{"type":"bandwidth","capabilities":{"bandwidth":true}}]}`,
	"mapped": `{"cniVersion":"1.0.0","name":"mapped","plugins":[{"type":"ptp",` + local(9) + `},{"type":"portmap","capabilities":{"portMappings":true}}]}`,
	"older":  `{"cniVersion":"0.4.0","name":"older","plugins":[{"type":"bridge","bridge":"br9",` + local(10) + `},{"type":"tuning","mtu":1200}]}`,
	"filed":  "", // /etc/cni/multus/net.d has it

	"other/elsewhere": `{"cniVersion":"1.0.0","name":"elsewhere","type":"macvlan","master":"lan",` + local(11) + `}`,
}

// besideFile is the configuration of the network filed.
var besideFile = `{"cniVersion":"1.0.0","name":"filed","type":"ptp",` + local(12) + `}`

// besidePod is a pod of the comparison.
type besidePod struct {
	networks  string // its annotation; "": it asks for none
	first     string // its annotation for another default network; "": none
	hostPort  int    // that leads to its port 8080; 0: none
	annotated int    // a port of the node that its annotation has lead there; 0: none
	wrong     bool   // one of the two refuses it, or both do
}

// besidePods are the pods of the comparison.
var besidePods = map[string]besidePod{
	"plain":       {},
	"short":       {networks: "ptp, default/bridge ,macvlan"},
	"names":       {networks: "other/elsewhere@data,bridge@net1,bridge"},
	"json":        {networks: `[{"name":"ptp","interface":"data"},{"name":"elsewhere","namespace":"other"},{"name":"bridge"}]`},
	"mac":         {networks: `[{"name":"macvlan","mac":"` + beside.Asked + `00:07"},{"name":"tuned","mac":"` + beside.Asked + `00:08"}]`},
	"ips":         {networks: `[{"name":"ips","ips":["10.50.20.7/24","fd00:50:20::7/64"]},{"name":"ips","ips":["10.50.20.8/24"],"interface":"more"}]`},
	"static":      {networks: "static,dual,noipam"},
	"shaped":      {networks: `[{"name":"shaped","bandwidth":{"ingressRate":1000000,"ingressBurst":80000,"egressRate":2000000,"egressBurst":90000}}]`},
	"args":        {networks: `[{"name":"bridge","cni-args":{"ips":["10.50.3.77"]}}]`},
	"port":        {hostPort: 8090},
	"ports":       {networks: `[{"name":"mapped","portMappings":[{"hostPort":8092,"containerPort":8080,"protocol":"tcp"}]}]`, hostPort: 8091, annotated: 8092},
	"default":     {first: "second", networks: "ptp"},
	"gateway":     {networks: `[{"name":"ptp","default-route":["10.50.2.1"]},{"name":"bridge"}]`},
	"files":       {networks: "filed,older"},
	"misspelt":    {networks: `[{"name":"ptp","inteface":"data"}]`, wrong: true},
	"undeclared":  {networks: `[{"name":"noipam","mac":"` + beside.Asked + `00:09"}]`, wrong: true},
	"undefined":   {networks: "ptp,none", wrong: true},
	"one-ifname":  {networks: "ptp@data,bridge@data", wrong: true},
	"unreachable": {networks: "nowhere/ptp", wrong: true},
}

// besideDifferences are what docs/MULTUS.md lists, as far as a cluster shows it.
var besideDifferences = []beside.Difference{
	{Field: "nil", Why: beside.NilGateway},
	{Pods: []string{"gateway"}, Field: "pod", Why: beside.DefaultRoute},
	{Pods: []string{"misspelt"}, Field: beside.Refused, Why: beside.UnknownKey},
	{Pods: []string{"undeclared"}, Field: beside.Refused, Why: beside.NoCapability},
}

// besideManifest is the manifest of these of the pods.
func besideManifest(names []string) (manifest string) {
	for _, name := range names {
		p := besidePods[name]
		annotations := map[string]string{}
		if p.networks != "" {
			annotations[nad.KeyNetworks] = p.networks
		}
		if p.first != "" {
			annotations[nad.KeyDefault] = p.first
		}
		asks, _ := json.Marshal(annotations) // a map of strings
		ports := "[]"
		if p.hostPort != 0 {
			ports = fmt.Sprintf("[{containerPort: 8080, hostPort: %d}]", p.hostPort)
		}
		manifest += fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: beside}, annotations: %[2]s}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: 2
  containers:
  - name: pod
    image: %[3]s
    imagePullPolicy: Never
    command: [/pod, serve]
    ports: %[4]s
    env:
    - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
---
`, name, asks, imageName, ports)
	}
	return manifest
}

// defineNetworks makes the definitions and the file of the comparison, and the link that macvlans share.
func (c *cluster) defineNetworks() {
	c.t.Helper()
	manifest := "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n---\n"
	for name, config := range besideNetworks {
		namespace, short, spaced := strings.Cut(name, "/")
		if !spaced {
			namespace, short = "default", name
		}
		one := definition(short, config)
		if config == "" {
			one = strings.Replace(one, "spec: {config: ''}", "spec: {}", 1)
		}
		manifest += strings.Replace(one, "metadata: {", "metadata: {namespace: "+namespace+", ", 1)
	}
	c.apply(manifest)
	n := c.nodes[0]
	n.write("etc/cni/multus/net.d/10-filed.conf", besideFile)
	nettest.Run(c.t, n.net, "ip link add lan type bridge")
	nettest.Run(c.t, n.net, "ip link set lan up")
}
