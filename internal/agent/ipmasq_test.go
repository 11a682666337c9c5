package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/nettest"
)

// Packets leave under the node's address or under the pod's own, as ip-masq-agent's file says at that moment. A wrong file changes
// nothing, shows in the status, and is forgotten once it is right again.
func TestMasqAgentFile(t *testing.T) {
	r := newRig(t)
	file := filepath.Join(string(r.root), "ip-masq-agent")
	must(t, os.MkdirAll(filepath.Dir(r.root.Config()), 0o755))
	must(t, os.WriteFile(r.root.Config(), []byte("blockedCIDRs: []\nmasquerade: {ipMasqAgentFile: "+file+"}\n"), 0o600))
	beyond := nettest.Node(t)
	nettest.Sysctl(t, nil, "ipv6/conf/all/forwarding", "1") // as the agent does: the kernel then has further routes
	nettest.Run(t, nil, "ip link add up0 type veth peer name up1 netns "+filepath.Base(beyond.Ref().Path))
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del up0") })
	nettest.Run(t, nil, "ip link set up0 addrgenmode none")
	for _, a := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		nettest.Run(t, nil, "ip addr add "+a+" dev up0 nodad")
	}
	nettest.Run(t, nil, "ip link set up0 up")
	for _, a := range []string{"192.0.2.2/24", "172.20.0.2/32", "169.254.7.7/32", "2001:db8::2/64", "fd99::2/128"} {
		nettest.Run(t, beyond, "ip addr add "+a+" dev up1 nodad")
	}
	nettest.Run(t, beyond, "ip link set up1 up")
	nettest.Run(t, beyond, "ip route add 10.88.0.0/24 via 192.0.2.1")
	nettest.Run(t, beyond, "ip route add fd00:88::/64 via 2001:db8::1")
	for _, to := range []string{"172.20.0.2/32 via 192.0.2.2", "169.254.7.7/32 via 192.0.2.2", "fd99::2/128 via 2001:db8::2"} {
		nettest.Run(t, nil, "ip route add "+to)
	}
	nettest.Eventually(t, "the kernel to have made its routes", func() bool {
		routes := nettest.Snapshot(t, nil).Only("route").String()
		return strings.Contains(routes, "anycast 2001:db8::/128 dev up0") && strings.Contains(routes, "multicast ff00::/8 dev up0")
	})
	r.begin()
	pod := nettest.Pod(t)
	own := addresses(r.add(request("c", pod)))
	nodes := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	servers := map[string]netip.AddrPort{}
	for _, a := range []string{"192.0.2.2", "172.20.0.2", "169.254.7.7", "2001:db8::2", "fd99::2"} {
		servers[a] = nettest.Serve(t, beyond, "udp", netip.AddrPortFrom(netip.MustParseAddr(a), 0).String())
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	reload, intervals := make(chan config.Reading), make(chan time.Duration, 3)
	go func() { defer close(ended); r.ground.KeepConfigured(ctx, reload, intervals) }()
	defer func() { cancel(); <-ended }()

	const often = "resyncInterval: 1s\n"
	want := func(kept ...string) {
		t.Helper()
		for to, server := range servers {
			i := 0
			if server.Addr().Is6() {
				i = 1
			}
			from := nodes[i]
			if strings.Contains(" "+strings.Join(kept, " ")+" ", " "+to+" ") {
				from = own[i]
			}
			var seen netip.AddrPort
			nettest.Eventually(t, "packets to "+to+" to come from "+from.String(), func() bool {
				var err error
				seen, err = nettest.Talk(pod, "udp", server, time.Second)
				return err == nil && seen.Addr().Unmap() == from
			})
		}
	}
	want("172.20.0.2", "169.254.7.7") // there is no file: ip-masq-agent's defaults
	must(t, os.WriteFile(file, []byte(often), 0o600))
	c, err := r.conf()
	must(t, err)
	reload <- config.Reading{Config: c} // and from here on, nobody reloads
	for _, step := range []struct {
		text string
		kept []string
	}{
		{often + "masqLinkLocal: true\n", []string{"172.20.0.2"}},
		{often + "nonMasqueradeCIDRs: [192.0.2.0/24, 'fd99::/16']\n", []string{"192.0.2.2", "169.254.7.7", "fd99::2"}},
		{`{"nonMasqueradeCIDRs": [], "masqLinkLocal": true, "resyncInterval": "1s"}`, nil},
	} {
		must(t, os.WriteFile(file+".new", []byte(step.text), 0o600), os.Rename(file+".new", file))
		want(step.kept...)
	}
	refuses := func(file, conf bool) {
		t.Helper()
		nettest.Eventually(t, fmt.Sprintf("the status to say whether ip-masq-agent's file is wrong (%t) and berthd.yaml is (%t)", file, conf), func() bool {
			st, err := r.Status(t.Context(), "")
			return err == nil && strings.Contains(st.Refused, `line 2: nonMasqueradeCIDRs: "all" is not a CIDR`) == file &&
				strings.Contains(st.Refused, "no berthd.yaml") == conf
		})
	}
	wrong, right := []byte(often+"nonMasqueradeCIDRs: [all]\n"), []byte(often+"nonMasqueradeCIDRs: []\nmasqLinkLocal: true\n")
	must(t, os.WriteFile(file, wrong, 0o600))
	refuses(true, false)
	want()
	c, err = r.conf() // no agent ends, and no rule changes, by a wrong file
	must(t, err)
	reload <- config.Reading{Config: c}
	reload <- config.Reading{Err: errors.New("no berthd.yaml")}
	refuses(true, true)
	want()
	must(t, os.WriteFile(file, right, 0o600))
	refuses(false, true)
	must(t, os.WriteFile(file, wrong, 0o600))
	refuses(true, true)
	must(t, os.WriteFile(file, right, 0o600))
	c, err = r.conf()
	must(t, err)
	reload <- config.Reading{Config: c}
	refuses(false, false)
	must(t, os.WriteFile(file, wrong, 0o600)) // the same words once more
	refuses(true, false)
}
