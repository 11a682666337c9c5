package conform

import (
	"net"
	"testing"
)

// isMapped tells the flows that a port map brought to a pod from the pod's own flows,
// masqueraded or not, and from flows that were sent to the pod's address.
func TestIsMapped(t *testing.T) {
	addrs := []net.IP{net.ParseIP("10.89.0.3"), net.ParseIP("fd00:89::3")}
	for flow, want := range map[string]bool{
		"conntrack proto 17 src 192.0.2.254 dst 192.0.2.1 sport 5303 dport 20002 reply src 10.89.0.3 dst 192.0.2.254 sport 8000 dport 5303":                     true,
		"conntrack proto 17 src 2001:db8:ffff::fe dst 2001:db8:ffff::1 sport 5303 dport 20002 reply src fd00:89::3 dst 2001:db8:ffff::fe sport 8000 dport 5303": true,
		"conntrack proto 17 src 10.89.0.3 dst 192.0.2.254 sport 4191 dport 9 reply src 192.0.2.254 dst 192.0.2.1 sport 9 dport 4191":                            false,
		"conntrack proto 17 src 10.89.0.3 dst 192.0.2.254 sport 4191 dport 9 reply src 192.0.2.254 dst 10.89.0.3 sport 9 dport 4191":                            false,
		"conntrack proto 17 src 192.0.2.254 dst 10.89.0.3 sport 5303 dport 8000 reply src 10.89.0.3 dst 192.0.2.254 sport 8000 dport 5303":                      false,
		"conntrack proto 17 src 192.0.2.254 dst 192.0.2.1 sport 5303 dport 20002 reply src 10.89.0.30 dst 192.0.2.254 sport 8000 dport 5303":                    false,
	} {
		if got := isMapped(flow, addrs); got != want {
			t.Errorf("%s: mapped is %v", flow, got)
		}
	}
}
