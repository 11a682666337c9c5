package cluster

import (
	"fmt"
	"net"
	"strings"

	"github.com/berth-net/berth/internal/nettest"
)

// service is the manifest of a Service of an app's pods, of both families, which the nodes have a port for, too.
func service(app string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec:
  type: NodePort
  ipFamilyPolicy: RequireDualStack
  selector: {app: %[1]s}
  ports: [{port: 80, targetPort: 8080}]
`, app)
}

// serve makes a Service, and returns its addresses and its port of the nodes.
func (c *control) serve(app string) (addrs []string, port int) {
	c.t.Helper()
	c.apply(service(app))
	var s struct {
		Spec struct {
			ClusterIPs []string
			Ports      []struct{ NodePort int }
		}
	}
	c.get(&s, defaultPath+"services/"+app)
	if len(s.Spec.ClusterIPs) != 2 {
		c.t.Fatalf("the service has the addresses %v", s.Spec.ClusterIPs)
	}
	return s.Spec.ClusterIPs, s.Spec.Ports[0].NodePort
}

// servicesLead checks that a Service leads to pods on all nodes: from pods, from nodes, and from outside by the nodes' ports;
// natively and through the tunnel. A pod that the Service leads to itself, too, is reached.
func (c *cluster) servicesLead(all []pod) {
	c.t.Helper()
	addrs, port := c.serve("web")
	var places []string
	for _, a := range addrs {
		places = append(places, net.JoinHostPort(a, "80"))
	}
	for _, n := range c.nodes {
		places = append(places, net.JoinHostPort(n.address4(), fmt.Sprint(port)), net.JoinHostPort(n.address6(), fmt.Sprint(port)))
	}
	var names []string
	for _, p := range all {
		names = append(names, p.Metadata.Name)
	}
	meet := func(places []string) []string { return append([]string{"meet", strings.Join(names, ",")}, places...) }
	askers := map[string]func() error{
		"the world": func() error { _, err := c.run(c.pod, meet(places[2:])...); return err },
	}
	for _, n := range c.nodes {
		askers["node "+n.name] = func() error { _, err := n.run(c.pod, meet(places)...); return err }
	}
	for _, p := range all {
		askers["pod "+p.Metadata.Name+" on "+p.Spec.NodeName] = func() error {
			line := c.call(p)
			defer line.Close()
			return tell(line, meet(places)...)
		}
	}
	for who, ask := range askers {
		if err := ask(); err != nil {
			c.t.Errorf("%s: %v", who, err)
		}
	}
	c.mustKubectl("delete", "service", "web")
	for _, n := range c.nodes {
		nettest.Eventually(c.t, "kube-proxy of "+n.name+" to forget the service", func() bool {
			return !strings.Contains(nettest.Snapshot(c.t, n.net).String(), "default/web")
		})
	}
}
