package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/stamp"
	"github.com/berth-net/berth/test/programs"
)

// The plugin sets down only a link that certainly belongs to this attachment. The agent sees to
// all other links when it is back.
func TestCut(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*away)
		prev    string
		down    string
		link    string
		cut     bool
	}{
		"no prevResult":      {nil, "", "", "", false},
		"null":               {nil, `"prevResult":null`, "", "", false},
		"nonsense":           {nil, `"prevResult":"` + ownLink + `"`, "", "", false},
		"another plugin's":   {nil, prevResult(alien), "", "", false},
		"another agent's":    {nil, prevResult(otherLink), "", otherLink, false},
		"the pod's end":      {nil, `"prevResult":{"interfaces":[{"name":"` + ownLink + `","sandbox":"/run/netns/c1"}]}`, "", "", false},
		"ours":               {nil, prevResult(ownLink), ownLink, ownLink, true},
		"gone":               {func(a *away) { a.remove(ownLink) }, prevResult(ownLink), ownLink, ownLink, false},
		"no alias":           {func(a *away) { a.alias(ownLink, "") }, prevResult(ownLink), "", ownLink, false},
		"another pod's":      {func(a *away) { a.stamp(ownLink, another) }, prevResult(ownLink), "", ownLink, false},
		"another's alias":    {func(a *away) { a.alias(ownLink, "somebody's") }, prevResult(ownLink), "", ownLink, false},
		"down":               {func(a *away) { a.setDown(ownLink) }, prevResult(ownLink), ownLink, ownLink, true},
		"instance gone":      {func(a *away) { must(a, os.Remove(root.Dir(a.root).Instance())) }, prevResult(otherLink), otherLink, otherLink, true},
		"instance damaged":   {func(a *away) { must(a, os.Truncate(root.Dir(a.root).Instance(), 0)) }, prevResult(ownLink), ownLink, ownLink, true},
		"everything removed": {func(a *away) { must(a, os.RemoveAll(filepath.Join(a.root, "var"))) }, prevResult(ownLink), ownLink, ownLink, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAway(t, t.TempDir())
			if test.prepare != nil {
				test.prepare(a)
			}
			if out, code := a.del(test.prev); code != 0 || out != "" {
				t.Fatalf("code %d: %s", code, out)
			}
			if got := a.down(); got != test.down {
				t.Errorf("down are %q, not %q", got, test.down)
			}
			if r := a.one(); r.Link != test.link || r.Cut != test.cut || (r.Addresses != nil) != (test.link != "") {
				t.Errorf("queued is %+v", r)
			}
			// And again, as a runtime does that has not received the success.
			if out, code := a.del(test.prev); code != 0 || out != "" {
				t.Fatalf("again: code %d: %s", code, out)
			}
		})
	}
}

// A process that somebody kept ready becomes the plugin, while no agent runs. If a link's ADD
// began after the process, the plugin cannot tell whether the DEL is about that link: the plugin
// leaves the link alone, and says that it is unsure. A new process cuts the link off.
func TestCutInAProcessKeptReady(t *testing.T) {
	for name, prev := range map[string]string{"by prevResult": prevResult(ownLink), "by the pod": ""} {
		t.Run(name, func(t *testing.T) {
			a := newAway(t, t.TempDir())
			pod := nettest.Pod(t)
			a.lead(ownLink, pod, "eth0")
			began := boottime.Now()
			a.alias(ownLink, stamp.Alias("abcd234567", "efghij2345", key, began+1))
			var out bytes.Buffer
			env := podEnv("DEL")
			env["CNI_NETNS"] = pod.Ref().Path
			stdin := strings.NewReader(conf(a.root, prev))
			p := &plugin{
				startOf: func(int64) (int64, bool) { return began, false },
				began:   boottime.Now(),
				getenv:  func(name string) string { return env[name] },
				stdin:   func(p []byte, _ int64) (int, error) { return stdin.Read(p) },
				stdout:  &out, stderr: io.Discard,
			}
			if status := p.run(); status != 1 || failure(t, out.Bytes()) != cni.CodeTryAgain || !strings.Contains(out.String(), cni.MsgUnsure) {
				t.Errorf("status %d: %s", status, out.String())
			}
			if got := a.down(); got != "" {
				t.Errorf("down are %q", got)
			}
			if out, code := execute(t, env, strings.NewReader(conf(a.root, prev))); code != 0 {
				t.Errorf("the next process: code %d: %s", code, out)
			}
			if got := a.down(); got != ownLink {
				t.Errorf("behind it down are %q", got)
			}
		})
	}
}

// Without a usable prevResult, the interface in the pod leads to the link. The link must be
// stamped as this attachment's: the namespace's path may lead to another pod by now, and a pod
// may have made the interface itself.
func TestCutWhatLeadsIntoThePod(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*away, *ns.Netns)
		ifname  string
		prev    string
		cut     string
	}{
		"ours": {nil, "eth0", "", ownLink},
		"down": {func(a *away, _ *ns.Netns) { a.setDown(ownLink) }, "eth0", "", ownLink},
		"another pod's in prevResult": {func(a *away, _ *ns.Netns) {
			a.rename(otherLink, "babcdefghij6666")
			a.stamp("babcdefghij6666", another)
		}, "eth0", prevResult("babcdefghij6666"), ownLink},
		"another agent's in prevResult": {nil, "eth0", prevResult(otherLink), ownLink},
		"a former one in prevResult":    {nil, "eth0", prevResult("babcdefghij6666"), ownLink},
		"a former one that is not gone": {func(a *away, _ *ns.Netns) {
			a.rename(otherLink, "babcdefghij6666")
			a.stamp("babcdefghij6666", key)
		}, "eth0", prevResult("babcdefghij6666"), ownLink + " babcdefghij6666"},
		"in prevResult":                   {nil, "eth0", prevResult(ownLink), ownLink},
		"another pod's":                   {func(a *away, _ *ns.Netns) { a.stamp(ownLink, another) }, "eth0", "", ""},
		"no stamp":                        {func(a *away, _ *ns.Netns) { a.alias(ownLink, "") }, "eth0", "", ""},
		"another's alias":                 {func(a *away, _ *ns.Netns) { a.alias(ownLink, "somebody's") }, "eth0", "", ""},
		"another agent's":                 {func(a *away, _ *ns.Netns) { a.alias(ownLink, stamp.Alias("zzzz234567", "efghij6666", key, 0)) }, "eth0", "", ""},
		"another name":                    {func(a *away, _ *ns.Netns) { a.rename(ownLink, "veth7") }, "eth0", "", "veth7"},
		"another name than in prevResult": {func(a *away, _ *ns.Netns) { a.rename(ownLink, "veth7") }, "eth0", prevResult(ownLink), "veth7"},
		"no stamp, in prevResult":         {func(a *away, _ *ns.Netns) { a.alias(ownLink, "") }, "eth0", prevResult(ownLink), ownLink},
		"another's alias, in prevResult":  {func(a *away, _ *ns.Netns) { a.alias(ownLink, "somebody's") }, "eth0", prevResult(ownLink), ownLink},
		"no stamp and another name, in prevResult": {func(a *away, _ *ns.Netns) {
			a.altname(ownLink, "berth-"+ownLink)
			a.alias(ownLink, "")
			a.rename(ownLink, "veth7")
		}, "eth0", prevResult(ownLink), "veth7"},
		"no stamp, another's in prevResult": {func(a *away, _ *ns.Netns) {
			a.alias(ownLink, "")
			a.rename(otherLink, "babcdefghij6666")
			a.alias("babcdefghij6666", "")
		}, "eth0", prevResult("babcdefghij6666"), ""},
		"no interface": {nil, "eth1", "", ""},
		"no namespace": {func(a *away, pod *ns.Netns) { must(a, unix.Unmount(pod.Ref().Path, unix.MNT_DETACH)) }, "eth0", "", ""},
		"gone": {func(a *away, pod *ns.Netns) {
			must(a, unix.Unmount(pod.Ref().Path, unix.MNT_DETACH))
			must(a, os.Remove(pod.Ref().Path))
		}, "eth0", "", ""},
		"a pod that lies": {func(a *away, pod *ns.Netns) {
			a.stamp(ownLink, key)
			link := nettest.Link(a, ownLink)
			must(a, pod.Do(func() error {
				return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lie", Index: link.Attrs().Index}, PeerName: "eth1"})
			}))
		}, "eth1", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAway(t, t.TempDir())
			pod := nettest.Pod(t)
			a.lead(ownLink, pod, "eth0")
			k := key
			k.Ifname = test.ifname
			a.stamp(ownLink, k)
			if test.prepare != nil {
				test.prepare(a, pod)
			}
			env := podEnv("DEL")
			env["CNI_NETNS"], env["CNI_IFNAME"] = pod.Ref().Path, test.ifname
			if out, code := execute(t, env, strings.NewReader(conf(a.root, test.prev))); code != 0 || out != "" {
				t.Fatalf("code %d: %s", code, out)
			}
			if got := a.down(); got != test.cut {
				t.Errorf("down are %q, not %q", got, test.cut)
			}
			if r := a.one(); r.Cut != (test.cut != "") || (r.Link != "") != (test.prev != "") {
				t.Errorf("queued is %+v", r)
			}
		})
	}
}

// The plugin finds a link that another program has renamed by its altname. Any link can have
// that altname, so the alias has to say that the link is this attachment's.
func TestCutWhatIsRenamed(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*away)
		down    string
	}{
		"ours":          {func(a *away) { a.stamp(ownLink, key) }, "veth7"},
		"no stamp":      {func(a *away) { a.alias(ownLink, "") }, ""},
		"another pod's": {func(a *away) { a.stamp(ownLink, another) }, ""},
		"another incarnation's": {func(a *away) {
			a.alias(ownLink, stamp.Alias("abcd234567", "efghij6666", key, 0))
		}, ""},
		"its name is another's": {func(a *away) {
			a.stamp(ownLink, key)
			a.rename(ownLink, "veth8")
			a.rename(otherLink, ownLink)
			a.alias(ownLink, stamp.Alias("abcd234567", "efghij2345", another, 0))
		}, "veth8"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAway(t, t.TempDir())
			a.altname(ownLink, "berth-"+ownLink)
			test.prepare(a)
			if slices.Contains(a.links, otherLink) {
				a.rename(ownLink, "veth7")
			}
			if out, code := a.del(prevResult(ownLink)); code != 0 || out != "" {
				t.Fatalf("code %d: %s", code, out)
			}
			if got := a.down(); got != test.down {
				t.Errorf("down are %q, not %q", got, test.down)
			}
			if r := a.one(); r.Link != ownLink || r.Cut != (test.down != "") {
				t.Errorf("queued is %+v", r)
			}
		})
	}
}

// The deletion is queued before the link goes down: an agent that sees the link go down, and
// would mend it, has to find the deletion.
func TestQueuedBeforeCut(t *testing.T) {
	a := newAway(t, t.TempDir())
	programs.Need(t, "strace")
	cmd := exec.Command("strace", "-f", "-o", filepath.Join(a.root, "strace"), "-e", "trace=renameat",
		"-e", "inject=renameat:signal=KILL", filepath.Join(bin, "berth-cni"))
	for k, v := range podEnv("DEL") {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stdin = strings.NewReader(conf(a.root, prevResult(ownLink)))
	out, err := cmd.CombinedOutput()
	if all, queueErr := queued(a.root); err == nil || len(out) > 0 || len(all) > 0 || queueErr != nil {
		t.Fatalf("killed before the deletion is queued: %v, %q; queued are %+v, %v", err, out, all, queueErr)
	}
	if got := a.down(); got != "" {
		t.Errorf("down are %q", got)
	}
}

// Somebody may have the lock of all network settings, and the way to the pod's interface may
// take long. So the plugin queues the deletion before it asks rtnetlink anything, and before
// it looks into the pod.
func TestQueuedBeforeLookedFor(t *testing.T) {
	a := newAway(t, t.TempDir())
	programs.Need(t, "strace")
	pod := nettest.Pod(t)
	a.lead(ownLink, pod, "eth0")
	a.stamp(ownLink, key)
	for i, test := range []struct{ call, prev string }{{"setns", ""}, {"sendto", ""}, {"sendto", prevResult(ownLink)}} {
		cmd := exec.Command("strace", "-f", "-o", filepath.Join(a.root, "strace"), "-e", "trace="+test.call,
			"-e", "inject="+test.call+":signal=KILL", filepath.Join(bin, "berth-cni"))
		for k, v := range podEnv("DEL") {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		cmd.Env = append(cmd.Env, "CNI_NETNS="+pod.Ref().Path)
		cmd.Stdin = strings.NewReader(conf(a.root, test.prev))
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Fatalf("%+v: it never looked: %q", test, out)
		}
		if all, err := queued(a.root); err != nil || len(all) != i+1 || a.down() != "" {
			t.Errorf("%+v: queued are %+v, %v; down are %q", test, all, err, a.down())
		}
	}
}

// A call that waits for the kernel for ever does not keep the plugin, and a call that begins
// late has a little time all the same.
func TestInTime(t *testing.T) {
	ever := make(chan error)
	if err := inTime(boottime.Now(), "the kernel", func() error { return <-ever }); err == nil || !strings.Contains(err.Error(), "not answered in time") {
		t.Errorf("for ever: %v", err)
	}
	want := errors.New("done")
	if err := inTime(boottime.Now()-int64(time.Hour), "the kernel", func() error { return want }); err != want {
		t.Errorf("late: %v", err)
	}
}

// If the keys of two attachments begin alike, the alias does not tell which of them a link is,
// unless prevResult names the incarnation.
func TestStampCutOffLeadsNowhere(t *testing.T) {
	a := newAway(t, t.TempDir())
	pod := nettest.Pod(t)
	a.lead(ownLink, pod, "eth0")
	own := nettest.Link(a, ownLink)
	for _, test := range []struct {
		network int
		named   string
		found   bool
	}{{64, "", true}, {128, "", false}, {128, "babcdefghij6666", false}, {128, ownLink, true}} {
		k := stamp.Key{Network: strings.Repeat("n", test.network), ContainerID: strings.Repeat("c", 128), Ifname: "eth0"}
		a.stamp(ownLink, k)
		c := call{container: k.ContainerID, ifname: k.Ifname, netns: pod.Ref().Path}
		c.head.Name, c.head.Root, c.head.HostVeth = k.Network, root.Dir(a.root), test.named
		if got, err := c.leadsTo(); err != nil || (got.index() == uint32(own.Attrs().Index)) != test.found || !test.found && got != nil {
			t.Errorf("%+v: it leads to %d, %v", test, got.index(), err)
		}
	}
}

// A link that an ADD has made by half is deleted, and not only set down: an agent that hangs in that
// ADD sets the link up by its index when it goes on.
func TestCutOfHalfMade(t *testing.T) {
	for name, test := range map[string]struct {
		k    stamp.Key
		gone bool
	}{"its own": {key, true}, "another attachment's": {another, false}} {
		t.Run(name, func(t *testing.T) {
			a := newAway(t, t.TempDir())
			pod := nettest.Pod(t)
			a.lead(ownLink, pod, "eth0")
			a.stamp(ownLink, test.k)
			groups, err := stamp.GroupsOf(ownLink[1:])
			must(t, err)
			own := nettest.Link(t, ownLink)
			must(t, netlink.LinkSetGroup(own, int(groups.Coming())))
			c := call{container: key.ContainerID, ifname: "eth0", netns: pod.Ref().Path}
			c.head.Name, c.head.Root = key.Network, root.Dir(a.root)
			if err := c.cutOff(); err != nil || c.down != test.gone {
				t.Errorf("cut off: %t, %v", c.down, err)
			}
			if _, err := netlink.LinkByIndex(own.Attrs().Index); (err != nil) != test.gone {
				t.Errorf("looking for the link: %v", err)
			}
		})
	}
}

// key is the key of the tests' deletions; the other key is almost the same.
var (
	key     = stamp.Key{Network: "net", ContainerID: "c1", Ifname: "eth0"}
	another = stamp.Key{Network: "net", ContainerID: "c1", Ifname: "eth1"}
)

// stamp gives a link the alias that the agent gives the link of an attachment.
func (a *away) stamp(name string, k stamp.Key) {
	a.Helper()
	a.alias(name, stamp.Alias(name[1:1+stamp.PrefixLen]+"234567", hold.ID(name[1+stamp.PrefixLen:]), k, 0))
}

// alias does `ip link set NAME alias TEXT`.
func (a *away) alias(name, text string) {
	a.Helper()
	link := nettest.Link(a, name)
	must(a, netlink.LinkSetAlias(link, text))
}

// lead moves a link's other end into a pod.
func (a *away) lead(link string, pod *ns.Netns, ifname string) {
	a.Helper()
	peer := nettest.Link(a, fmt.Sprintf("peer%d", slices.Index(a.links, link)))
	must(a, netlink.LinkSetName(peer, ifname))
	must(a, netlink.LinkSetNsFd(peer, pod.Fd()))
	must(a, pod.Do(func() error { return netlink.LinkSetUp(peer) }))
}

// rename does `ip link set NAME name TO`.
func (a *away) rename(name, to string) {
	a.Helper()
	link := nettest.Link(a, name)
	must(a, netlink.LinkSetName(link, to))
	a.links[slices.Index(a.links, name)] = to
}

// altname does `ip link property add dev NAME altname TEXT`.
func (a *away) altname(name, text string) {
	a.Helper()
	link := nettest.Link(a, name)
	must(a, netlink.LinkAddAltName(link, text))
}

// remove does `ip link delete NAME`.
func (a *away) remove(name string) {
	a.Helper()
	link := nettest.Link(a, name)
	must(a, netlink.LinkDel(link))
}

// setDown does `ip link set NAME down`.
func (a *away) setDown(name string) {
	a.Helper()
	link := nettest.Link(a, name)
	must(a, netlink.LinkSetDown(link))
}
