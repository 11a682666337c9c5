package oracle

import (
	"slices"
	"testing"
)

// A property of a link that was there is new once it changed. What belongs to a new link is not told beside the link.
func TestChangedProperty(t *testing.T) {
	before := State{[]string{"link eth0 veth up", "setting eth0 mtu 1500", "sysctl ipv4/conf/eth0/forwarding = 0", "sysctl ipv4/ip_forward = 0"}}
	after := State{[]string{
		"link eth0 veth up", "link eth9 veth up", "setting eth0 mtu 1400", "setting eth9 mtu 1400",
		"sysctl ipv4/conf/eth0/forwarding = 1", "sysctl ipv4/conf/eth9/forwarding = 1", "sysctl ipv4/ip_forward = 1",
	}}
	want := []string{"link eth9 veth", "setting eth0 mtu 1400", "sysctl ipv4/conf/eth0/forwarding = 1", "sysctl ipv4/ip_forward = 1"}
	if got := before.New(after); !slices.Equal(got, want) {
		t.Errorf("new are\n%q, not\n%q", got, want)
	}
	if got := after.New(before); !slices.Equal(got, []string{"setting eth0 mtu 1500", "sysctl ipv4/conf/eth0/forwarding = 0", "sysctl ipv4/ip_forward = 0"}) {
		t.Errorf("the other way round new are %q", got)
	}
}

func TestLinkOf(t *testing.T) {
	for line, want := range map[string]string{
		"setting a.7 mtu 9":                           "a.7",
		"sysctl ipv6/neigh/a.7/retrans_time = 1":      "a.7",
		"sysctl ipv4/conf/all/forwarding = 1":         "",
		"sysctl ipv4/conf/default/forwarding = 1":     "",
		"sysctl ipv4/ip_local_reserved_ports = 1/2/3": "",
		"link a veth": "",
	} {
		if got, ok := linkOf(line); got != want || ok != (want != "") {
			t.Errorf("%q is of %q, not of %q", line, got, want)
		}
	}
}
