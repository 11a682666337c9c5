package node

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// Limits of the pods in these tests, in bytes.
const (
	toPod, fromPod = 4_000_000, 8_000_000 // a second
	burst          = 40_000
)

// bandwidth is the runtime's configuration with these limits, as bits.
func bandwidth(toPod, fromPod, burst int) string {
	return fmt.Sprintf(`"runtimeConfig":{"bandwidth":{"ingressRate":%d,"ingressBurst":%d,"egressRate":%d,"egressBurst":%d}}`,
		toPod*8, burst*8, fromPod*8, burst*8)
}

// keepsLimits streams to a pod and from it.
func keepsLimits(t *testing.T, pod *ns.Netns, got attached) {
	t.Helper()
	for i := range got.addrs {
		t.Run(fmt.Sprintf("to %s", got.addrs[i]), func(t *testing.T) {
			nettest.Pour(t, nil, pod, got.addrs[i])
			nettest.WantRate(t, toPod, burst, func() uint64 { return nettest.Received(t, pod, "eth0") })
		})
		t.Run(fmt.Sprintf("from %s", got.addrs[i]), func(t *testing.T) {
			nettest.Pour(t, pod, nil, nodeAddrs[i])
			nettest.WantRate(t, fromPod, burst, func() uint64 { return nettest.Received(t, nil, got.host) })
		})
	}
}

// qdisc shows the queueing disciplines of a link.
func qdisc(t *testing.T, at *ns.Netns, link string) string {
	t.Helper()
	args := []string{"qdisc", "show", "dev", link}
	cmd := exec.Command(nettest.Program(t, "tc"), args...)
	if at != nil {
		cmd = nettest.Command(at, cmd.Path, args...)
	}
	out, err := cmd.CombinedOutput()
	must(t, err)
	return string(out)
}

// filter is the program at a link that drops what comes in above a rate.
type filter struct {
	name string
	id   ebpf.ProgramID
}

// police shows the program at a link; the zero filter: there is none.
func police(t *testing.T, link string) filter {
	t.Helper()
	all, err := netlink.FilterList(nettest.Link(t, link), netlink.HANDLE_MIN_INGRESS)
	must(t, err)
	for _, one := range all {
		if b, ok := one.(*netlink.BpfFilter); ok {
			return filter{b.Name, ebpf.ProgramID(b.Id)}
		}
	}
	return filter{}
}

// A pod's limits of bandwidth are kept, shown, checked, and mended at once. They are the same
// after a restart, and a rebuild finds them again without a ledger. A pod without limits has none.
func TestBandwidth(t *testing.T) {
	hasAddresses(t)
	a := startAgent(t, pools)
	pod, free := nettest.Pod(t), nettest.Pod(t)
	limits := bandwidth(toPod, fromPod, burst)
	got := a.add("c", pod, limits)
	other := a.add("free", free)
	keepsLimits(t, pod, got)
	for _, q := range []string{qdisc(t, nil, other.host), qdisc(t, free, "eth0")} {
		if strings.Contains(q, "tbf") {
			t.Errorf("a pod without limits has %s", q)
		}
	}
	want := api.Bandwidth{IngressRate: toPod * 8, IngressBurst: burst * 8, EgressRate: fromPod * 8, EgressBurst: burst * 8}
	shown := func() {
		t.Helper()
		for _, at := range a.list() {
			if at.ContainerID == "c" && (at.Bandwidth == nil || *at.Bandwidth != want) || at.ContainerID == "free" && at.Bandwidth != nil {
				t.Errorf("%s is shown with %+v", at.ContainerID, at.Bandwidth)
			}
		}
	}
	shown()
	have := qdisc(t, nil, got.host)

	a.says("mended what had changed", func() { nettest.Run(t, nil, "tc qdisc del dev "+got.host+" root") })
	nettest.Eventually(t, "the limit to be back", func() bool { return qdisc(t, nil, got.host) == have })

	a.kill()
	nettest.Run(t, nil, "tc qdisc replace dev "+got.host+" root handle 1: pfifo limit 1000")
	a.start()
	nettest.Eventually(t, "the limit to be back", func() bool { return qdisc(t, nil, got.host) == have })
	shown()

	a.stop()
	must(t, os.Remove(a.root.Ledger()))
	a.rebuildLedger()
	a.start()
	shown()
	if now := qdisc(t, nil, got.host); now != have {
		t.Errorf("after a rebuild the link has %s, not %s", now, have)
	}
}

// The filter at the node's end, which drops packets above a pod's limit, is mended at once, and
// after a restart. A rebuild believes this filter, and not the pod's end.
func TestPoliceIsKept(t *testing.T) {
	nettest.NeedPrograms(t)
	a := startAgent(t, pools)
	pod := nettest.Pod(t)
	got := a.add("c", pod, bandwidth(toPod, fromPod, burst))
	have := police(t, got.host).name
	back := func() {
		t.Helper()
		nettest.Eventually(t, "the limit to be back", func() bool { return have != "" && police(t, got.host).name == have })
	}
	a.says("mended what had changed", func() { nettest.Run(t, nil, "tc qdisc del dev "+got.host+" clsact") })
	back()
	a.kill()
	nettest.Run(t, nil, "tc filter del dev "+got.host+" ingress")
	a.start()
	back()
	nettest.Run(t, pod, "tc qdisc del dev eth0 root")
	a.stop()
	must(t, os.Remove(a.root.Ledger()))
	a.rebuildLedger()
	a.start()
	back()
	for _, at := range a.list() {
		if at.Bandwidth == nil || at.Bandwidth.EgressRate != fromPod*8 {
			t.Errorf("after a rebuild %s is shown with %+v", at.ContainerID, at.Bandwidth)
		}
	}
}

// The bursts for which kubelets ask, half a gigabyte for any rate, are cut to 100 ms. A pod that
// sets its interface down and up has the kernel fill the bucket of the node's end again, and gets
// no more than one such bucket each time.
func TestBurstOfKubelet(t *testing.T) {
	hasAddresses(t)
	a := startAgent(t, pools)
	pod := nettest.Pod(t)
	got := a.add("c", pod, bandwidth(toPod, fromPod, math.MaxInt32/8))
	source, err := net.Dial("udp", netip.AddrPortFrom(got.addrs[0], 9).String())
	must(t, err)
	defer source.Close()
	go func() { // UDP: the pod loses its routes with its interface, and can answer nothing
		data := make([]byte, 1400)
		for err := error(nil); !errors.Is(err, net.ErrClosed); {
			_, err = source.Write(data)
		}
	}()
	received := func() uint64 { return nettest.Received(t, pod, "eth0") }
	nettest.WantRate(t, toPod, toPod/10, received)
	const flaps = 4
	begun, first := time.Now(), received()
	for range flaps {
		nettest.Run(t, pod, "ip link set eth0 down")
		nettest.Run(t, pod, "ip link set eth0 up")
		before := received()
		nettest.Eventually(t, "the pod to receive again", func() bool { return received() > before+toPod/20 })
	}
	bytes, took := received()-first, time.Since(begun).Seconds()
	if most := 1.05*toPod*took + (flaps+1)*toPod/10; float64(bytes) > most {
		t.Errorf("in %.3f s the pod got %d bytes; with %d full buckets it can be %.0f", took, bytes, flaps+1, most)
	}
}

// The agent refuses values that cannot be limits, and a repeated ADD that asks for another
// limit. Such an ADD changes nothing. An ADD into another namespace gets the limit that it asks
// for.
func TestBandwidthThatCannotBe(t *testing.T) {
	a := startAgent(t, pools)
	pod := nettest.Pod(t)
	for limits, says := range map[string]string{
		`"ingressRate":1000000`:                                               "ingressBurst is missing",
		`"egressRate":1000000,"egressBurst":12104`:                            "egressBurst is 12104 bits; a packet of MTU 1500 needs 12112 or more",
		`"egressRate":-1,"egressBurst":12112`:                                 "egressRate is -1",
		`"ingressRate":1000000,"ingressBurst":34359738368`:                    "ingressBurst is 34359738368",
		`"ingressRate":99999999999999999999999999999999,"ingressBurst":12112`: "ingressRate is 99999999999999999999999999999999",
	} {
		if _, err := a.tryAdd("c", pod, `"runtimeConfig":{"bandwidth":{`+limits+`}}`); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", limits, err)
		}
	}
	if all := a.list(); len(all) > 0 {
		t.Errorf("what is refused leaves %+v", all)
	}
	got := a.add("c", pod, bandwidth(toPod, fromPod, 1514))
	if again := a.add("c", pod, bandwidth(toPod, fromPod, 1514)); again.host != got.host {
		t.Errorf("a repeated ADD makes %s", again.host)
	}
	if again := a.add("c", pod); again.host != got.host {
		t.Errorf("a repeated ADD without limits makes %s", again.host)
	}
	if _, err := a.tryAdd("c", pod, bandwidth(toPod, fromPod, 3000)); err == nil || !strings.Contains(err.Error(), "with ingress of rate 4000000bps burst 1514, but this ADD asks for rate 4000000bps burst 3000") {
		t.Errorf("a repeated ADD with another limit: %v", err)
	}
	elsewhere := nettest.Pod(t)
	moved := a.add("c", elsewhere, bandwidth(toPod, fromPod, 3000))
	if q := qdisc(t, nil, moved.host); !strings.Contains(q, "tbf be98: root") {
		t.Errorf("the link of an ADD that moves has %s", q)
	}
	for _, at := range a.list() {
		if at.HostVeth == moved.host && at.Bandwidth.IngressBurst != 3000*8 {
			t.Errorf("after an ADD that moves the agent shows %+v", at.Bandwidth)
		}
	}
}

// A pod that may change its interfaces can take the limit of its own end away, and CHECK says
// so. The pod cannot take away the limits of the node's end, which hold both ways.
func TestPodWithoutItsLimit(t *testing.T) {
	nettest.NeedPrograms(t)
	hasAddresses(t)
	a := startAgent(t, pools)
	pod, sink := nettest.Pod(t), nettest.Pod(t)
	limits := bandwidth(toPod, fromPod/8, burst)
	got, to := a.add("c", pod, limits), a.add("sink", sink)
	have := qdisc(t, nil, got.host)
	nettest.Run(t, pod, "tc qdisc del dev eth0 root")
	for i := range to.addrs {
		nettest.Pour(t, pod, sink, to.addrs[i])
		nettest.WantAtMost(t, fromPod/8, burst+fromPod/8/10, func() uint64 { return nettest.Received(t, sink, "eth0") })
	}
	raw, err := a.exec("CHECK", "c", pod.Ref().Path, limits, `"prevResult":{"cniVersion":"1.1.0"}`)
	if err == nil || !strings.Contains(err.Error()+string(raw), "sends with noqueue, not rate 1000000bps") {
		t.Errorf("CHECK of a pod that sends without its limit: %s, %v", raw, err)
	}
	if now := qdisc(t, nil, got.host); now != have {
		t.Errorf("the node's end has %s, not %s", now, have)
	}
	nettest.Pour(t, nil, pod, got.addrs[0])
	nettest.WantRate(t, toPod, burst, func() uint64 { return nettest.Received(t, pod, "eth0") })
}

// plugins PR #562, calico #13986, kubernetes #56840: things that limited a pod stayed on the node
// when the pod or the agent was gone. A pod with limits has no device but its link, and leaves
// nothing behind, however the pod went.
func TestBandwidthLeavesNothing(t *testing.T) {
	a := startAgent(t, pools) // with the test the node is as it was before
	before := nettest.Snapshot(t, nil)
	for _, how := range []string{"DEL", "without agent", "pod gone"} {
		pod := nettest.Pod(t)
		got := a.add(how[:3], pod, bandwidth(toPod, fromPod, burst))
		program := police(t, got.host).id
		if links := nettest.Snapshot(t, nil).Only("link"); strings.Count(links.String(), "\n") != strings.Count(before.Only("link").String(), "\n")+1 {
			t.Errorf("with a pod the node has\n%s", links)
		}
		switch how {
		case "without agent":
			a.kill()
		case "pod gone":
			nettest.Delete(t, pod)
		}
		a.del(how[:3], wait)
		if how == "without agent" {
			a.start()
			a.wantGone()
		}
		if links := nettest.Snapshot(t, nil).Only("link"); links.String() != before.Only("link").String() {
			t.Errorf("after it (%s) the node has\n%s", how, links)
		}
		if program == 0 && !nettest.Programs(t) {
			continue
		}
		nettest.Eventually(t, "the kernel frees the program that held the pod to its limit", func() bool {
			left, err := ebpf.NewProgramFromID(program)
			if err == nil {
				left.Close()
			}
			return errors.Is(err, fs.ErrNotExist)
		})
	}
}
