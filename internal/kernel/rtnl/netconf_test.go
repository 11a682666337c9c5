package rtnl_test

import (
	"fmt"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// A monitor tells when somebody switches forwarding off, for all links or for one link, whoever's link
// it is. The monitor does not tell of forwarding that somebody switches on, of the setting for links to
// come, or of other sysctls.
func TestMonitorForwarding(t *testing.T) {
	all := map[string]string{"ipv4": "ipv4/ip_forward", "ipv6": "ipv6/conf/all/forwarding"}
	c := open(t, nil)
	l, _ := veth(t, c, "veth0")
	for _, name := range all {
		nettest.Sysctl(t, nil, name, "1")
	}
	_, told := listen(t, c)
	var seen []string
	wait := func(want string) { t.Helper(); waitTold(t, told, &seen, want) }
	for _, family := range []string{"ipv4", "ipv6"} {
		six := family == "ipv6"
		for _, quiet := range []string{"conf/default/forwarding", "conf/veth0/accept_redirects"} {
			nettest.Sysctl(t, nil, family+"/"+quiet, "0")
		}
		nettest.Sysctl(t, nil, family+"/conf/veth0/forwarding", "0")
		one := fmt.Sprint("unforwarded ", l.Index, " IPv6 ", six)
		wait(one)
		if len(seen) != 1 {
			t.Errorf("told are %q, want one", seen)
		}
		nettest.Sysctl(t, nil, family+"/conf/veth0/forwarding", "1")
		seen = nil
		nettest.Sysctl(t, nil, all[family], "0")
		wait(fmt.Sprint("unforwarded 0 IPv6 ", six))
		wait(one)
		nettest.Sysctl(t, nil, all[family], "1")
		seen = nil
	}
	nettest.Sysctl(t, nil, "ipv6/conf/veth0/forwarding", "0")
	wait(fmt.Sprint("unforwarded ", l.Index, " IPv6 true"))
	if len(seen) != 1 {
		t.Errorf("switching forwarding on is told: %q", seen)
	}
	nettest.Sysctl(t, nil, "ipv6/conf/veth0/forwarding", "1")
}
