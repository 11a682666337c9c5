package networks

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// sweeper gives host-local the GC that the reference plugins do not have yet (containernetworking/plugins v1.9.1): as a plugin behind another one,
// it passes the result on, and at GC it removes the reservations of the network that belong to no valid attachment. A file how.GC
// tells it what to do before that; began.GC says that it does it.
const sweeper = `#!/bin/sh
in=$(cat)
case $CNI_COMMAND in
ADD) echo "$in" | sed 's/.*"prevResult":\(.*\),"type":"sweeper"}$/\1/' ;;
GC)
	name=$(echo "$in" | sed 's/.*"name":"\([a-z]*\)".*/\1/')
	echo $name >>%[1]s/how.called
	case $(cat %[1]s/how.GC 2>/dev/null) in
	fail) echo '{"cniVersion":"1.1.0","code":123,"msg":"told to fail"}'; exit 1 ;;
	garbage) echo garbage; exit 1 ;;
	hang) touch %[1]s/how.began; while test -e %[1]s/how.GC; do sleep 0.05; done ;;
	esac
	for file in %[1]s/$name/10.*; do
		test -e $file || continue
		set -- $(tr '\r\n' '  ' <$file)
		case "$in" in *"{\"containerID\":\"$1\",\"ifname\":\"$2\"}"*) ;; *) rm $file ;; esac
	done ;;
esac
`

// withSweeper is a node with the plugin sweeper.
func withSweeper(t testing.TB) *node {
	n := newNode(t)
	must(t, os.WriteFile(filepath.Join(n.plugins, "sweeper"), fmt.Appendf(nil, sweeper, n.disk), 0o700))
	return n
}

// swept is a network whose reservations sweeper removes.
func (n *node) swept(name, subnet, version string, more ...string) string {
	extra := strings.Join(append(more, ""), ",")
	return fmt.Sprintf(`{"cniVersion":%q,"name":%q,%s"plugins":[{"type":"ptp",%s},{"type":"sweeper"}]}`, version, name, extra, n.local(subnet))
}

// reserve has host-local reserve an address of a network for a pod of which Berth hears nothing, and returns the file.
func (n *node) reserve(name, subnet string) string {
	n.t.Helper()
	cmd := exec.Command(filepath.Join(n.plugins, "host-local"))
	cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=stranger", "CNI_NETNS=/none", "CNI_IFNAME=eth0", "CNI_PATH=" + n.plugins}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"type":"x",%s}`, name, n.local(subnet)))
	before := n.files()
	out, err := cmd.CombinedOutput()
	if err != nil {
		n.t.Fatalf("host-local: %v: %s", err, out)
	}
	for _, file := range n.files() {
		if !slices.Contains(before, file) {
			return file
		}
	}
	n.t.Fatal("host-local has reserved nothing")
	return ""
}

// apart is a network whose plugins know no GC.
func (n *node) apart() []string {
	return n.keys(`{"cniVersion":"1.0.0","name":"apart","type":"ptp",` + n.local("10.5.0.0/24") + `}`)
}

// called are the networks for which sweeper's GC was executed since the last call, in order.
func (n *node) called() []string {
	n.t.Helper()
	file := filepath.Join(n.disk, "how.called")
	raw, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		n.t.Fatal(err)
	}
	_ = os.Remove(file)
	return strings.Fields(string(raw))
}

// gc has a runtime's GC executed, with a list of valid attachments.
func (n *node) gc(keys []string, containers ...string) error {
	var valid []string
	for _, c := range containers {
		valid = append(valid, fmt.Sprintf(`{"containerID":%q,"ifname":"eth0"}`, c))
	}
	_, err := n.Exec("GC", "", "", append(keys, `"cni.dev/valid-attachments":[`+strings.Join(valid, ",")+`]`)...)
	return err
}

// GC takes the reservations of pods that Berth does not know, in each network whose list has GC, and leaves those of pods that live, though
// the runtime's list has their first interfaces alone. That goes on when the last pod is gone, and works for a pod whose GC comes
// before its DEL.
func TestGC(t *testing.T) {
	n := withSweeper(t)
	keys := n.keys(
		n.swept("one", "10.1.0.0/24", "1.1.0"), n.swept("two", "10.2.0.0/24", "1.1.0"),
		n.swept("old", "10.3.0.0/24", "1.0.0"), n.swept("unwanted", "10.4.0.0/24", "1.1.0", `"disableGC":true`),
	)
	must(t, n.gc(keys)) // nobody has seen the networks
	pod, next := nettest.Pod(t), nettest.Pod(t)
	n.add("c1", pod, keys...)
	n.add("c2", next, keys...)
	lives := n.files()
	gone := []string{n.reserve("one", "10.1.0.0/24"), n.reserve("two", "10.2.0.0/24")}
	stays := []string{n.reserve("old", "10.3.0.0/24"), n.reserve("unwanted", "10.4.0.0/24")}

	must(t, n.gc(keys, "c1", "c2", "c3")) // Berth does not know c3: there may be pods of a former CNI
	if got := n.called(); len(got) > 0 {
		t.Errorf("GC was executed for %q, beside a pod that Berth lacks", got)
	}
	must(t, n.gc(keys, "c1", "c2"))
	if got, want := n.called(), []string{"one", "two"}; !slices.Equal(got, want) {
		t.Errorf("GC was executed for %q, want %q", got, want)
	}
	got, want := n.files(), append(lives, stays...)
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("host-local has %q, want %q without %q", got, want, gone)
	}

	must(t, n.gc(keys, "c1")) // c2 goes by this GC, by its DELs
	_, err := n.Exec("DEL", "c1", pod.Ref().Path, keys...)
	must(t, err)
	again := n.reserve("two", "10.2.0.0/24")
	must(t, n.gc(keys))
	if got := n.files(); slices.Contains(got, again) {
		t.Errorf("after the last pod host-local has %q", got)
	}
	for _, file := range stays {
		must(t, os.Remove(filepath.Join(n.disk, file)))
	}
	n.nothingLeft()
}

// A pod that comes while GC is under way, with a list that lacks it, keeps what it gets.
func TestAddDuringGC(t *testing.T) {
	n := withSweeper(t)
	keys := n.keys(n.swept("one", "10.1.0.0/24", "1.1.0"))
	pod, late := nettest.Pod(t), nettest.Pod(t)
	n.add("c1", pod, keys...)
	stranger := n.reserve("one", "10.1.0.0/24")
	n.tell("GC", "hang")
	collected, added := make(chan error, 1), make(chan error, 1)
	go func() { collected <- n.gc(keys, "c1") }()
	nettest.Eventually(t, "the plugin to begin its GC", func() bool { _, err := os.Stat(filepath.Join(n.disk, "how.began")); return err == nil })
	go func() { _, err := n.Exec("ADD", "c2", late.Ref().Path, keys...); added <- err }()
	nettest.Eventually(t, "the ledger to have the late pod", func() bool {
		all, err := n.API.List(context.Background(), api.Filter{Container: "c2"})
		return err == nil && len(all) == 1
	})
	other := nettest.Pod(t) // which comes later and has an address: so the late pod would have one by now, if its ADD did not wait
	n.add("c3", other, n.apart()...)
	_, err := n.Exec("DEL", "c3", other.Ref().Path, n.apart()...)
	must(t, err)
	n.tell("GC", "")
	must(t, <-collected, <-added)
	if got := n.files(); len(got) != 2 || slices.Contains(got, stranger) {
		t.Errorf("host-local has %q, want those of two pods, without %s", got, stranger)
	}
	for i, c := range []string{"c1", "c2"} {
		_, err := n.Exec("DEL", c, []string{pod.Ref().Path, late.Ref().Path}[i], keys...)
		must(t, err)
	}
	n.nothingLeft()
}

// However a plugin's GC fails, GC says which plugin of which network it was, has tried the other networks, and pods come to other networks
// and go meanwhile. A GC that hangs is killed.
func TestGCFails(t *testing.T) {
	n := withSweeper(t)
	keys := n.keys(n.swept("one", "10.1.0.0/24", "1.1.0"), n.swept("two", "10.2.0.0/24", "1.1.0"))
	pod := nettest.Pod(t)
	n.add("c1", pod, keys...)
	for how, want := range map[string]struct {
		code uint
		says string
	}{"fail": {123, "told to fail"}, "garbage": {999, "garbage"}} {
		n.tell("GC", how)
		err := n.gc(keys, "c1")
		for _, says := range []string{want.says, "network one: plugin sweeper", "network two: plugin sweeper"} {
			programs.WantError(t, err, want.code, says)
		}
		n.tell("GC", "")
	}
	n.tell("GC", "hang")
	collected := make(chan error, 1)
	go func() { collected <- n.gc(keys, "c1") }()
	nettest.Eventually(t, "the plugin to begin its GC", func() bool { _, err := os.Stat(filepath.Join(n.disk, "how.began")); return err == nil })
	other := nettest.Pod(t)
	n.add("c2", other, n.apart()...)
	_, err := n.Exec("DEL", "c2", other.Ref().Path, n.apart()...)
	must(t, err)
	_, err = n.Exec("DEL", "c1", pod.Ref().Path, keys...)
	must(t, err)
	if got := n.files(); len(got) != 0 { // a DEL's first try has less time than a GC
		t.Errorf("after DEL's answer host-local has %v", got)
	}
	err = <-collected
	programs.WantError(t, err, 999, "network one: plugin sweeper: plugin sweeper (GC) did not end within")
	n.tell("GC", "")
	n.nothingLeft()
}
