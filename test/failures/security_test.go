package failures

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// CVE-2021-20206: a plugin's type with "../" in it executed any program. Here Berth neither
// executes nor opens a foreign path that a configuration or the environment names.
// CVE-2025-0750, CVE-2026-53489: ids with "../" led out of the folder that they were meant for.
func TestHostileNames(t *testing.T) {
	n := newNode(t, plain)
	trap := filepath.Join(n.Root, "trap")
	marker := filepath.Join(n.Root, "sprung")
	must(t, os.WriteFile(trap, fmt.Appendf(nil, "#!/bin/sh\ntouch %s\n", marker), 0o755))
	pod := nettest.Pod(t)
	before := look(t)
	for _, c := range []struct {
		code      uint
		container string
		keys      []string
	}{
		{4, "../../trap", nil},
		{4, "..", nil},
		{4, "a/b", nil},
		{4, strings.Repeat("c", 129), nil},
		{7, "c", []string{`"name":"../../trap"`}},
		{7, "c", []string{`"pool":"../../trap"`}},
		{7, "c", []string{`"type":"../../trap"`}},
		{7, "c", []string{`"ipam":{"type":"../../trap"}`}},
		{2, "c", []string{`"delegate":{"type":"../../trap"}`}},
	} {
		for _, verb := range []string{"ADD", "CHECK"} {
			_, err := n.exec(call{verb: verb, container: c.container, netns: pod.Ref().Path, keys: c.keys})
			programs.WantError(t, err, c.code, "")
		}
		if _, err := n.exec(call{verb: "DEL", container: c.container, keys: c.keys}); c.code == 4 {
			programs.WantError(t, err, c.code, "")
		}
	}
	nettest.Same(t, before, look(t), "hostile names have changed")
	if _, err := os.Stat(marker); err == nil {
		t.Error("the trap was executed")
	}
}

// CVE-2020-10749: pods sent router advertisements, and the node took its routes
// from them. Here the node does not listen to pods' advertisements, also where
// its default is to listen.
func TestRogueRouterAdvertisement(t *testing.T) {
	nettest.Need(t)
	byDefault := func(value string) {
		must(t, os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_ra", []byte(value), 0))
	}
	byDefault("2") // also where the node forwards
	defer byDefault("1")
	n := newNode(t, plain)
	pod := nettest.Pod(t)
	got := n.add("c", pod)
	nettest.Run(t, pod, "ip -6 addr add fe80::bad/64 dev eth0 nodad")
	nettest.Run(t, nil, fmt.Sprintf("ip -6 addr add fe80::900d/64 dev %s nodad", got.host))
	routes := func() string { return look(t).Only("route").String() }
	const learnt = "via fe80::bad"
	advertise := func() {
		t.Helper()
		nettest.Advertise(t, pod, "eth0", netip.MustParseAddr("fe80::bad"), netip.Prefix{})
	}
	for range 5 {
		advertise()
	}
	if strings.Contains(routes(), learnt) {
		t.Errorf("the node has taken a route from its pod:\n%s", routes())
	}

	// A node that listens, without a table and without an agent that puts the table back, shows
	// that the advertisement is a good one.
	n.Crash()
	nettest.Run(t, nil, "nft flush ruleset")
	must(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+got.host+"/accept_ra", []byte("2"), 0))
	nettest.Eventually(t, "a node that listens to take the route", func() bool {
		advertise()
		return strings.Contains(routes(), learnt)
	})
}

// CVE-2020-15257: abstract sockets were open to pods of the host's network.
// Here every socket is a file.
func TestNoAbstractSocket(t *testing.T) {
	n := newNode(t, plain)
	n.add("c", nettest.Pod(t))
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", n.PID()))
	if err != nil || !strings.Contains(string(raw), "berthd.sock") {
		t.Fatalf("sockets of the agent: %v\n%s", err, raw)
	}
	for _, line := range strings.Split(string(raw), "\n") {
		if strings.Contains(line, " @") {
			t.Errorf("an abstract socket: %s", line)
		}
	}
}

// CVE-2024-25621, CVE-2022-29178: folders and sockets were open to other users,
// who thereby became root. Here folders, files and sockets are root's alone,
// whatever the umask.
func TestFilesAreRootsAlone(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	n := newNode(t, plain)
	n.add("c", nettest.Pod(t))
	for _, part := range []string{"run/berth", "var/lib/berth"} {
		lines := strings.Split(nettest.Files(t, filepath.Join(n.Root, part)).String(), "\n")
		if len(lines) < 2 {
			t.Errorf("%s has %q", part, lines)
		}
		for _, line := range lines { // file NAME MODE
			if !strings.HasSuffix(line, "------") {
				t.Errorf("in %s: %s", part, line)
			}
		}
		info, err := os.Stat(filepath.Join(n.Root, part))
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v %v", part, info.Mode(), err)
		}
	}
	locks, err := filepath.Glob("/run/berth-*.lock")
	if err != nil || len(locks) == 0 {
		t.Errorf("locks of agents: %q, %v", locks, err)
	}
	for _, lock := range locks { // who can open a lock can keep an agent from starting
		if info, err := os.Stat(lock); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v %v", lock, info.Mode(), err)
		}
	}
}

// CVE-2022-0811, CVE-2024-3154: sysctls and annotations that nobody had allowed went through to
// the kernel. Here Berth refuses everything that it does not know.
func TestUnknownKeysAreRefused(t *testing.T) {
	n := newNode(t, plain)
	pod := nettest.Pod(t)
	before := look(t).And(nettest.Snapshot(t, pod))
	for _, c := range []call{
		{keys: []string{`"sysctl":{"net.ipv4.ip_forward":"1"}`}},
		{keys: []string{`"annotations":{"kernel.core_pattern":"|/bin/sh"}`}},
		{args: "SYSCTL=kernel.core_pattern=|/bin/sh"},
		{args: "K8S_POD_NAME=a\nb"},
	} {
		c.verb, c.container, c.netns = "ADD", "c", pod.Ref().Path
		_, err := n.exec(c)
		if e := new(api.Error); !errors.As(err, &e) || e.Code != 2 && e.Code != 4 {
			t.Errorf("ADD with %s%s: %v", c.keys, c.args, err)
		}
	}
	nettest.Same(t, before, look(t).And(nettest.Snapshot(t, pod)), "refused requests have changed")
}

// CVE-2023-27595: filters were dropped while the agent restarted.
// CVE-2025-32793: the traffic of pods that ended was let through. Here pods that
// are deleted stay cut off until their links are gone, also with no agent.
func TestDeletedStaysCutWithoutAnAgent(t *testing.T) {
	n := newNode(t, roomy)
	table := look(t).Only("nft")
	heard := answer(t, nil, "192.0.2.1")
	looked := 0
	for try := 0; looked == 0 && try < 10; try++ { // all links may be gone before the agent is killed
		pods := n.burst(40)
		for _, p := range pods {
			dial(t, p.pod, "192.0.2.1").wantAnswer()
		}
		n.killAtCut(pods)
		nettest.Same(t, table, look(t).Only("nft"), "without an agent the table has changed")
		drain(heard)
		links := look(t).Only("link").String()
		for _, p := range pods {
			if strings.Contains(links, "link "+p.host+" ") {
				looked++
				dial(t, p.pod, "192.0.2.1").send()
			}
		}
		dial(t, nil, "192.0.2.1").wantAnswer() // all that was sent before has come
		for _, from := range drain(heard) {
			if !strings.HasPrefix(from, "192.0.2.1:") {
				t.Errorf("a deleted pod is heard: %s", from)
			}
		}
		if out, err := exec.Command(nettest.Program(t, "conntrack"), "-D", "-s", "192.0.2.1", "-d", "192.0.2.1").CombinedOutput(); err != nil {
			t.Errorf("forgetting what the node said to itself: %v\n%s", err, out)
		}
		n.Again()
		n.wantNothing()
	}
	if looked == 0 {
		t.Error("no link was left to look at")
	}
}
