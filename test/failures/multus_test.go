package failures

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// multus #1449, #755: DEL was given a configuration that had lost what the release needs, so
// that addresses ran out. Here DEL needs no more of the configuration than the network's name
// and the root, whatever ADD was given.
func TestStrippedConfiguration(t *testing.T) {
	n := newNode(t, "cooldown: 1ms\npools:\n- {name: other, cidrs: [10.99.0.0/24]}\n- {name: default, cidrs: [10.88.0.7/32]}\n")
	pod := nettest.Pod(t)
	for _, conf := range []string{ // the pool has one address
		`{"name":"net","root":%q}`,
		`{"name":"net","root":%q,"type":"berth-cni","cniVersion":"9.0.0","runtimeConfig":null,"prevResult":[]}`,
		`{"name":"net","root":%q,"cniVersion":"","pool":["default"],"mtu":"1400","sysctl":{}}`,
	} {
		nettest.Eventually(t, "the address to be free", func() bool {
			_, err := n.tryAdd("c", pod, `"pool":"default"`, `"mtu":1400`, `"capabilities":{"ips":true}`, `"runtimeConfig":{"ips":["10.88.0.7"]}`)
			return err == nil
		})
		r := n.begin(call{verb: "DEL", container: "c"})
		r.conf = fmt.Sprintf(conf, n.Root)
		r.feed()
		if _, err := r.end(); err != nil {
			t.Errorf("DEL with %s: %v", r.conf, err)
		}
	}
	n.wantNothing()
}

// multus #1221: a plugin that ran could not be replaced ("text file busy"), and the node's
// reboot hung. Here a running plugin can be replaced, and the running process goes on with the
// old program to its end.
func TestReinstallWhileThePluginRuns(t *testing.T) {
	n := newNode(t, plain)
	dir, newer := t.TempDir(), t.TempDir()
	install := func(from string) {
		t.Helper()
		if _, err := n.Berth(t.Context(), "install", "--bin-dir", dir+"/bin", "--conf-dir", dir+"/net.d", "--from", from); err != nil {
			t.Fatal(err)
		}
	}
	install(n.bin)
	program, err := os.ReadFile(filepath.Join(n.bin, "berth-cni"))
	if err == nil {
		err = os.WriteFile(filepath.Join(newer, "berth-cni"), append(program, "newer"...), 0o755)
	}
	must(t, err)
	runs := n.begin(call{verb: "ADD", container: "c", netns: nettest.Pod(t).Ref().Path, path: dir + "/bin/berth-cni"})
	install(newer)
	runs.feed()
	got, err := parse(runs.end())
	must(t, err)
	nettest.Ping(t, nil, got.Addr)
	now, err := os.ReadFile(dir + "/bin/berth-cni")
	if err != nil || len(now) != len(program)+len("newer") {
		t.Errorf("the plugin in place has %d bytes (%v), want %d", len(now), err, len(program)+len("newer"))
	}
	if _, err := n.exec(call{verb: "DEL", container: "c", path: dir + "/bin/berth-cni"}); err != nil {
		t.Errorf("DEL by the newer one: %v", err)
	}
}

// multus #239, #323: the network namespace was gone, and DEL was skipped.
// multus, general: an ADD that could do nothing "succeeded", with the address
// 0.0.0.0. Here DEL releases all the same, and such an ADD is an error.
func TestNetnsIsGone(t *testing.T) {
	n := newNode(t, plain)
	for i, netns := range []func(path string) string{
		func(path string) string { return path },
		func(string) string { return "" },
		func(string) string { return "/run/netns/never" },
	} {
		pod := nettest.Pod(t)
		container := fmt.Sprint("c", i)
		n.add(container, pod)
		path := pod.Ref().Path
		gone(t, pod)
		if _, err := n.exec(call{verb: "DEL", container: container, netns: netns(path)}); err != nil {
			t.Errorf("DEL with CNI_NETNS=%q: %v", netns(path), err)
		}
		_, err := n.exec(call{verb: "ADD", container: container, netns: path})
		programs.WantError(t, err, 4, path)
	}
	n.wantNothing()
}
