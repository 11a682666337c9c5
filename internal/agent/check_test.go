package agent

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// CHECK names exactly what differs: each case makes one difference, on the
// node, in the pod, or in what the runtime kept, and reads all of the answer.
func TestCheckNamesEachDifference(t *testing.T) {
	const (
		host = "link HOST: changed: "
		pod  = "interface eth0 in NETNS: changed: "
	)
	for _, c := range []struct{ name, at, command, says string }{
		{"nothing", "", "", ""},
		{"host link's MTU", "host", "ip link set HOST mtu 1400", host + "mtu 1400, not 1500"},
		{"host link's MAC", "host", "ip link set HOST address 02:00:00:00:00:01", host + "address 02:00:00:00:00:01, not MAC; no neighbour 10.88.0.1; no neighbour fd00:88::1"},
		{"host link's group", "host", "ip link set HOST group 7", host + "group 7, not #"},
		{"host link's alias", "host", "ip link set HOST alias other", host + `alias "other", not "TEXT"`},
		{"host link down", "host", "ip link set HOST down",
			host + "down; no route to 10.88.0.1; no neighbour 10.88.0.1; no route to fd00:88::1; no neighbour fd00:88::1"},
		{"host's IPv4 route", "host", "ip route del 10.88.0.1", host + "no route to 10.88.0.1"},
		{"host's IPv6 route", "host", "ip -6 route del fd00:88::1", host + "no route to fd00:88::1"},
		{"host's IPv4 neighbour gone", "host", "ip neigh del 10.88.0.1 dev HOST", host + "no neighbour 10.88.0.1"},
		{"host's IPv6 neighbour another", "host", "ip neigh replace fd00:88::1 lladdr 02:00:00:00:00:01 dev HOST nud permanent",
			host + "neighbour fd00:88::1 at 02:00:00:00:00:01, not MAC"},
		{"pool's IPv4 route", "host", "ip route del unreachable 10.88.0.0/24", "route unreachable 10.88.0.0/24 metric #: gone"},
		{"pool's IPv6 route", "host", "ip -6 route del unreachable fd00:88::/64", "route unreachable fd00:88::/64 metric #: gone"},
		{"the agent's table", "host", "nft delete table inet TABLE", "nftables table inet TABLE is gone"},
		{"a rule of the table", "host", "nft flush table inet TABLE", "nftables table inet TABLE is changed: ..."},

		{"link", "pod", "ip link del eth0", "link HOST: gone\ninterface eth0 in NETNS: gone"},
		{"pod's interface renamed", "pod", "ip link set eth0 name eth7", "interface eth0 in NETNS: gone"},
		{"pod's interface down", "pod", "ip link set eth0 down", pod + "down; no address fd00:88::1/128; no route ..."},
		{"pod's MTU", "pod", "ip link set eth0 mtu 1400", pod + "mtu 1400, not 1500"},
		{"pod's MAC", "pod", "ip link set eth0 address 02:00:00:00:00:01", pod + "mac 02:00:00:00:00:01, not MAC; no neighbour 169.254.1.1 at MAC; no neighbour fe80::1 at MAC"},
		{"pod's IPv4 address", "pod", "ip addr del 10.88.0.1/32 dev eth0", pod + "no address 10.88.0.1/32; no route 169.254.1.1/32 ...; no neighbour 169.254.1.1 at MAC"},
		{"pod's IPv6 address", "pod", "ip addr del fd00:88::1/128 dev eth0", pod + "no address fd00:88::1/128"},
		{"pod's way to its gateway", "pod", "ip -6 route del fe80::1 dev eth0", pod + "no route fe80::1/128 dev # proto 98"},
		{"pod's default route", "pod", "ip route del default", pod + "no route 0.0.0.0/0 via 169.254.1.1 dev # onlink proto 98"},
		{"pod's IPv4 neighbour", "pod", "ip neigh del 169.254.1.1 dev eth0", pod + "no neighbour 169.254.1.1 at MAC"},
		{"pod's IPv6 neighbour", "pod", "ip neigh replace fe80::1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent",
			pod + "no neighbour fe80::1 at MAC"},
		{"pod hears router advertisements", "pod sysctl", "ipv6/conf/eth0/accept_ra 2", pod + "accept_ra 2, not 0"},
		{"pod's IPv6 off", "pod sysctl", "ipv6/conf/eth0/disable_ipv6 1", pod + "no address fd00:88::1/128; no route ...; disable_ipv6 1, not 0"},

		{"result without an address", "result", `"fd00:88::1/128" "fd00:88::7/128"`, "prevResult lacks the address fd00:88::1/128"},
		{"result of another link", "result", `"HOST" "bother"`, "prevResult lacks the interface HOST (MAC)"},
		{"result without a route", "result", `"::/0" "2000::/3"`, "prevResult lacks the route ::/0 via fe80::1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t)
			netns := nettest.Pod(t)
			raw, err := r.Add(t.Context(), request("c", netns), now())
			must(t, err)
			veth := r.List(api.Filter{})[0].HostVeth
			command := strings.NewReplacer("HOST", veth, "TABLE", "berth-"+r.core.Instance).Replace(c.command)
			switch c.at {
			case "pod":
				nettest.Run(t, netns, command)
			case "pod sysctl":
				name, value, _ := strings.Cut(command, " ")
				nettest.Sysctl(t, netns, name, value)
			case "host":
				nettest.Run(t, r.node.Here, command)
			case "result":
				from, to, _ := strings.Cut(command, " ")
				raw = json.RawMessage(strings.Replace(string(raw), from, to, 1))
			}
			err = r.Check(t.Context(), request("c", netns, `"prevResult":`+string(raw)), now())
			if c.says == "" {
				if err != nil {
					t.Errorf("CHECK: %v", err)
				}
				return
			}
			wantError(t, err, 103, "")
			if err == nil {
				return
			}
			_, says, _ := strings.Cut(err.Error(), ": ")
			says = strings.NewReplacer(veth, "HOST", netns.Ref().Path, "NETNS", "berth-"+r.core.Instance, "TABLE").Replace(says)
			if !matches103(says, c.says) {
				t.Errorf("it says\n%s\nand not\n%s", says, c.says)
			}
		})
	}
}

// A runtime binds a pod's network namespace to another path, and removes the first one. CHECK
// looks at the pod by the path that the request names.
func TestCheckAtAnotherPath(t *testing.T) {
	r := start(t)
	pod, other := nettest.Pod(t), nettest.Pod(t)
	raw, err := r.Add(t.Context(), request("c", pod), now())
	must(t, err)
	req := request("c", pod, `"prevResult":`+string(raw))
	was := req.Netns.Path
	req.Netns.Path = other.Ref().Path
	bind(t, was, req.Netns.Path)
	defer bind(t, req.Netns.Path, was) // for the cleanup that deletes the pod
	for _, id := range []uint64{req.Netns.ID, 0} {
		req.Netns.ID = id
		if err := r.Check(t.Context(), req, now()); err != nil {
			t.Errorf("CHECK at another path: %v", err)
		}
	}
	nettest.Run(t, other, "ip link set eth0 mtu 1400") // the path of `other` leads to `pod`
	wantError(t, r.Check(t.Context(), req, now()), 103, "mtu 1400")
}

// A CHECK that cannot look at something, as when its time is over, does not say that the
// attachment differs. If CHECK has also seen a difference, it says both.
func TestCheckCannotLook(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	raw, err := r.Add(t.Context(), request("c", pod), now())
	must(t, err)
	r.close()
	var blind atomic.Bool
	r.decorate = change("link", func(k *hold.Kind) {
		verify := k.Verify
		k.Verify = func(ctx context.Context, look *hold.Look, hs []hold.Hold) []error {
			if blind.Load() {
				return slices.Repeat([]error{context.DeadlineExceeded}, len(hs))
			}
			return verify(ctx, look, hs)
		}
	})
	r.bringUp()
	req := request("c", pod, `"prevResult":`+string(raw))
	must(t, r.Check(t.Context(), req, now()))
	blind.Store(true)
	late := context.DeadlineExceeded.Error()
	wantError(t, r.Check(t.Context(), req, now()), 11, late)
	nettest.Run(t, pod, "ip link set eth0 mtu 1400")
	err = r.Check(t.Context(), req, now())
	wantError(t, err, 103, "mtu 1400")
	wantError(t, err, 103, late)
}

// bind moves a mount to another path.
func bind(t *testing.T, from, to string) {
	t.Helper()
	must(t, unix.Mount(from, to, "", unix.MS_BIND, ""))
	must(t, unix.Unmount(from, unix.MNT_DETACH))
}

// matches103 compares what a CHECK says with what the CHECK should say. In `want`, MAC stands for any
// MAC, # for any number, TEXT for any text without quotes, and ... for anything.
func matches103(says, want string) bool {
	p := strings.NewReplacer("MAC", "([0-9a-f]{2}:){5}[0-9a-f]{2}", "#", "[0-9]+", "TEXT", "[^\"]*", `\.\.\.`, ".*").Replace(regexp.QuoteMeta(want))
	return regexp.MustCompile("^" + p + "$").MatchString(says)
}
