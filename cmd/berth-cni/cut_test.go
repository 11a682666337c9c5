package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	keys "github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// Only what is known to be this agent's link is set down; the agent sees to the
// rest when it is back.
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
		"gone":               {func(a *away) { a.remove(ownLink) }, prevResult(ownLink), ownLink, ownLink, true},
		"stamped":            {func(a *away) { a.stamp(ownLink, key) }, prevResult(ownLink), ownLink, ownLink, true},
		"another pod's":      {func(a *away) { a.stamp(ownLink, another) }, prevResult(ownLink), "", ownLink, false},
		"another's alias":    {func(a *away) { a.alias(ownLink, "somebody's") }, prevResult(ownLink), ownLink, ownLink, true},
		"down":               {func(a *away) { a.setDown(ownLink) }, prevResult(ownLink), ownLink, ownLink, true},
		"instance gone":      {func(a *away) { a.must(os.Remove(root.Dir(a.root).Instance())) }, prevResult(otherLink), otherLink, otherLink, true},
		"instance damaged":   {func(a *away) { a.must(os.Truncate(root.Dir(a.root).Instance(), 0)) }, prevResult(ownLink), ownLink, ownLink, true},
		"everything removed": {func(a *away) { a.must(os.RemoveAll(filepath.Join(a.root, "var"))) }, prevResult(ownLink), ownLink, ownLink, true},
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
			// And again, as a runtime does that has not heard of the success.
			if out, code := a.del(test.prev); code != 0 || out != "" {
				t.Fatalf("again: code %d: %s", code, out)
			}
		})
	}
}

// The deletion is queued before the link goes down: an agent that sees that, and
// would mend it, has to find it.
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

// Of a long key the alias has the beginning, and of two that begin alike nobody
// can tell whose it is.
func TestStampCutOff(t *testing.T) {
	a := newAway(t, t.TempDir())
	long := keys.Key{Network: strings.Repeat("n", 128), ContainerID: strings.Repeat("c", 128), Ifname: "eth0"}
	a.stamp(ownLink, long)
	for _, test := range []struct {
		key    string
		others bool
	}{
		{long.String(), false},
		{key.String(), true},
		{strings.Repeat("n", 127), true},
		{"x" + long.String()[1:], true},
	} {
		if got, err := isStampedElse(ownLink, test.key); got != test.others || err != nil {
			t.Errorf("stamped as another's than %.140s: %v, %v", test.key, got, err)
		}
	}
}

// key is that of the tests' deletions, and another almost the same.
var (
	key     = keys.Key{Network: "net", ContainerID: "c1", Ifname: "eth0"}
	another = keys.Key{Network: "net", ContainerID: "c1", Ifname: "eth1"}
)

// stamp gives a link the alias that the agent gives one of an attachment.
func (a *away) stamp(name string, k keys.Key) {
	a.Helper()
	a.alias(name, keys.Alias("abcd234567", hold.ID(name[1+prefixLen:]), k))
}

// alias is `ip link set NAME alias TEXT`.
func (a *away) alias(name, text string) {
	a.Helper()
	link, err := netlink.LinkByName(name)
	a.must(err)
	a.must(netlink.LinkSetAlias(link, text))
}

// remove is `ip link delete NAME`.
func (a *away) remove(name string) {
	a.Helper()
	link, err := netlink.LinkByName(name)
	a.must(err)
	a.must(netlink.LinkDel(link))
}

// setDown is `ip link set NAME down`.
func (a *away) setDown(name string) {
	a.Helper()
	link, err := netlink.LinkByName(name)
	a.must(err)
	a.must(netlink.LinkSetDown(link))
}
