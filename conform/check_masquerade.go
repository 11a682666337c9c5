package conform

import (
	"net"
	"slices"
)

// keysIPMasq asks a server behind the node's gateway, from a pod, from which address the question came. That is the pod's own
// address if nobody masquerades: the server has a route back, so that it can say so.
func keysIPMasq(t *T) {
	uses := slices.IndexFunc(t.list().Plugins, func(p Plugin) bool { return string(p.Keys["ipMasq"]) == "true" })
	if uses < 0 {
		t.Unsupportedf("no plugin of the list has the key ipMasq")
	}
	plugin := t.list().Plugins[uses].Type
	t.makeOther()
	a := t.Attached()
	families, own := t.familiesOf(a)
	tried := 0
	for _, f := range families {
		t.serve(t.world, f.other, podPort, host)
		for _, network := range []string{"tcp", "udp"} {
			from, err := t.answer(a.Pod.fd, network, address(f.other, podPort))
			if err != nil {
				t.Notef("the pod reaches nobody beyond the node by %s, %s: %v", f.name, network, err)
				continue
			}
			tried++
			if slices.ContainsFunc(own, net.ParseIP(from).Equal) {
				t.Failf("%s has ipMasq, and %s to %s comes from the pod's own address %s: nobody has masqueraded it", plugin, network, f.other, from)
			}
		}
	}
	if tried == 0 {
		t.Unsupportedf("the pod reaches nobody beyond the node")
	}
	t.MustDel(a)
}

// host returns an address without its port.
func host(a net.Addr) string {
	ip, _, _ := net.SplitHostPort(a.String())
	return ip
}
