package networks

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// flaky is a plugin that does what a file for the verb says, or else keeps a file for each network.
const flaky = `#!/bin/sh
file=%[1]s/flaky-$CNI_CONTAINERID-$CNI_IFNAME
case $(cat %[1]s/how.$CNI_COMMAND 2>/dev/null) in
fail) echo '{"cniVersion":"1.0.0","code":123,"msg":"told to fail"}'; exit 1 ;;
limited) echo '{"cniVersion":"1.1.0","code":51,"msg":"told to be limited"}'; exit 1 ;;
later) touch $file; echo '{"cniVersion":"1.0.0","code":123,"msg":"told to fail"}'; exit 1 ;;
crash) touch $file; kill -9 $$ ;;
garbage) touch $file; echo garbage; exit 0 ;;
much) touch $file; head -c 10485760 /dev/zero | tr '\0' x; exit 0 ;;
hang) while test -e %[1]s/how.$CNI_COMMAND; do sleep 0.05; done ;;
esac
case $CNI_COMMAND in
ADD) touch $file; echo '{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.2/24"}]}' ;;
DEL) rm -f $file ;;
esac
`

// tell has flaky do something at each execution of a verb; "" has it work.
func (n *node) tell(verb, how string) {
	n.t.Helper()
	file := filepath.Join(n.disk, "how."+verb)
	if how == "" {
		must(n.t, os.Remove(file))
		return
	}
	must(n.t, os.WriteFile(file, []byte(how), 0o600))
}

// withFlaky is a node with the plugin flaky.
func withFlaky(t testing.TB) *node {
	n := newNode(t)
	must(t, os.WriteFile(filepath.Join(n.plugins, "flaky"), fmt.Appendf(nil, flaky, n.disk), 0o700))
	return n
}

// around are three networks, of which flaky makes the second.
func (n *node) around() []string {
	return n.keys(
		`{"cniVersion":"1.0.0","name":"one","type":"ptp",`+n.local("10.1.0.0/24")+`}`,
		`{"cniVersion":"1.0.0","name":"two","type":"flaky"}`,
		`{"cniVersion":"1.0.0","name":"three","type":"macvlan","master":"br8",`+n.local("10.3.0.0/24")+`}`,
	)
}

// multus, general: what failed late was not undone.
// Here, however the plugin of one network fails at ADD, the ADD fails with a number and says which network it was, and nothing of the others
// stays, before the runtime has said DEL.
func TestAddFails(t *testing.T) {
	n := withFlaky(t)
	for how, want := range map[string]struct {
		code uint
		says string
	}{
		"fail": {123, "told to fail"}, "later": {123, "told to fail"}, "crash": {999, "signal"}, "garbage": {999, "flaky"}, "much": {999, "10485760 bytes"},
	} {
		n.tell("ADD", how)
		pod := nettest.Pod(t)
		_, err := n.Exec("ADD", "c-"+how, pod.Ref().Path, n.around()...)
		programs.WantError(t, err, want.code, want.says)
		programs.WantError(t, err, want.code, "network two as net1")
		n.nothingLeft()
		n.tell("ADD", "")
		n.add("c-"+how, pod, n.around()...)
		_, err = n.Exec("DEL", "c-"+how, pod.Ref().Path, n.around()...)
		must(t, err)
		n.nothingLeft()
	}
}

// multus #1239, #1084: DEL hid its errors. multus #355, #922: a failed DEL removed what its repetition needed.
// Here, however the plugin of one network fails at DEL, DEL succeeds, the other networks go at once, and the pod's successor gets all it needs.
// What is owed goes when the plugin works again.
func TestDelFails(t *testing.T) {
	n := withFlaky(t)
	for _, how := range []string{"fail", "crash", "hang"} {
		pod := nettest.Pod(t)
		n.add("c-"+how, pod, n.around()...)
		n.tell("DEL", how)
		_, err := n.Exec("DEL", "c-"+how, pod.Ref().Path, n.around()...)
		must(t, err)
		want := []string{"flaky-c-" + how + "-net1"}
		nettest.Eventually(t, "the other networks to be gone", func() bool { return slices.Equal(n.files(), want) && len(n.links(pod)) == 0 })
		if how != "hang" {
			out, err := n.Berth(t.Context(), "owed")
			must(t, err)
			if !strings.Contains(out, "network two as net1") {
				t.Errorf("%s: berth owed says\n%s", how, out)
			}
		}
		next := nettest.Pod(t)
		n.tell("DEL", "")
		n.add("next-"+how, next, n.around()...)
		_, err = n.Berth(t.Context(), "owed", "retry")
		must(t, err)
		_, err = n.Exec("DEL", "next-"+how, next.Ref().Path, n.around()...)
		must(t, err)
		n.nothingLeft()
	}
}

// Without a berth-runner no pod gets a network of other plugins, and pods go all the same: what is owed goes when berth-runner is back.
func TestRunnerAway(t *testing.T) {
	n := newNode(t)
	pod := nettest.Pod(t)
	n.add("c1", pod, n.three()...)
	n.stopRunner()
	_, err := n.Exec("ADD", "c2", nettest.Pod(t).Ref().Path, n.three()...)
	programs.WantError(t, err, 11, "berth-runner")
	_, err = n.Exec("DEL", "c2", "", n.three()...)
	must(t, err)
	_, err = n.Exec("DEL", "c1", pod.Ref().Path, n.three()...)
	must(t, err)
	if got := n.files(); len(got) != 3 {
		t.Errorf("host-local has %v", got)
	}
	n.startRunner()
	_, err = n.Berth(t.Context(), "owed", "retry")
	must(t, err)
	n.nothingLeft()
}

// multus #239, #323: DEL was skipped, because the network namespace was gone.
// Here a pod is deleted while no agent runs, and its network namespace is gone when the agent is back. The plugins get no namespace then.
func TestAgentAway(t *testing.T) {
	n := newNode(t)
	pod := nettest.Pod(t)
	n.add("c1", pod, n.three()...)
	n.Crash()
	path := pod.Ref().Path
	_, err := n.Exec("DEL", "c1", path, n.three()...)
	must(t, err)
	nettest.Delete(t, pod)
	n.Again()
	n.nothingLeft()
}

// An agent is killed while a plugin works for a pod's second network. The next agent gives everything back when the runtime says DEL, or
// what it says after such an ADD: nothing, and then the pod is in no list of GC.
func TestKilledInAdd(t *testing.T) {
	n := withFlaky(t)
	for _, how := range []string{"DEL", "GC"} {
		pod := nettest.Pod(t)
		n.tell("ADD", "hang")
		done := make(chan error)
		go func() { _, err := n.Exec("ADD", "c1", pod.Ref().Path, n.around()...); done <- err }()
		nettest.Eventually(t, "the second network to be begun", func() bool {
			all, err := n.API.List(context.Background(), api.Filter{Ifname: "net1"})
			return err == nil && len(all) == 1
		})
		n.Crash()
		n.tell("ADD", "")
		n.Again()
		if err := <-done; err == nil {
			t.Log("the plugin has repeated its request") // and the pod is attached
		}
		var err error
		if how == "DEL" {
			_, err = n.Exec("DEL", "c1", pod.Ref().Path, n.around()...)
		} else {
			_, err = n.Exec("GC", "", "", append(n.around(), `"cni.dev/valid-attachments":[]`)...)
		}
		must(t, err)
		n.nothingLeft()
	}
}

// multus #1087: a reboot cut short the file that DEL needed, and DEL answered success.
// A reboot takes the pods, but not what plugins keep on the disk. The next agent has the plugins give that back, without any DEL, and
// although berth-runner starts after it.
func TestRebooted(t *testing.T) {
	n := newNode(t)
	var pods []*ns.Netns
	for i := range 3 {
		pods = append(pods, nettest.Pod(t))
		n.add(fmt.Sprintf("c%d", i), pods[i], n.three()...)
	}
	n.Crash()
	n.stopRunner()
	nettest.AnotherBoot(t)
	for _, pod := range pods {
		nettest.Delete(t, pod)
	}
	must(t, os.RemoveAll(root.Dir(n.Root).Run()))
	if got := n.files(); len(got) != 9 {
		t.Errorf("host-local has %v", got)
	}
	n.Again()
	n.startRunner()
	_, err := n.Berth(t.Context(), "owed", "retry")
	must(t, err)
	n.nothingLeft()
	_, err = n.Exec("DEL", "c0", "", n.three()...)
	must(t, err)
}
