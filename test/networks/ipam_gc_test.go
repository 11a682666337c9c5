package networks

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// keeper is host-local with a GC like sweeper's, and with the STATUS that a file how.STATUS tells.
const keeper = `#!/bin/sh
case $CNI_COMMAND in
GC)
	in=$(cat)
	name=$(echo "$in" | sed 's/.*"name":"\([a-z]*\)".*/\1/')
	echo $name >>%[1]s/how.called
	for file in %[1]s/$name/10.*; do
		test -e $file || continue
		set -- $(tr '\r\n' '  ' <$file)
		case "$in" in *"{\"containerID\":\"$1\",\"ifname\":\"$2\"}"*) ;; *) rm $file ;; esac
	done ;;
STATUS)
	if test -e %[1]s/how.STATUS; then echo '{"cniVersion":"1.1.0","code":50,"msg":"keeper is not ready"}'; exit 1; fi ;;
*) exec %[2]s/host-local ;;
esac
`

// kept is the ipam of a network whose addresses keeper gives.
func (n *node) kept(subnet string) string {
	return fmt.Sprintf(`"ipam":{"type":"keeper","ranges":[[{"subnet":%q}]],"dataDir":%q}`, subnet, n.disk)
}

// GC has the IPAM plugins of Berth's own networks give back what no pod has, in the first network and in further ones, and not
// where the list wants none. STATUS asks them.
func TestGCOfIPAM(t *testing.T) {
	n := newNode(t)
	must(t, os.WriteFile(filepath.Join(n.plugins, "keeper"), fmt.Appendf(nil, keeper, n.disk, n.plugins), 0o700))
	plain := n.lent(n.kept("10.1.0.0/24"))
	listed := n.keys(
		`{"cniVersion":"1.1.0","name":"two","type":"berth-cni",`+n.kept("10.2.0.0/24")+`}`,
		`{"cniVersion":"1.1.0","name":"unwanted","disableGC":true,"plugins":[{"type":"berth-cni",`+n.kept("10.3.0.0/24")+`}]}`,
	)
	pods := []string{"c1", "c2"}
	one, two := nettest.Pod(t), nettest.Pod(t)
	n.add("c1", one, plain...)
	n.add("c2", two, listed...)
	want := n.files()
	n.reserve("net", "10.1.0.0/24")
	n.reserve("two", "10.2.0.0/24")
	stays := n.reserve("unwanted", "10.3.0.0/24")

	must(t, n.gc(plain, pods...))
	if got := n.called(); !slices.Equal(got, []string{"net", "two"}) {
		t.Errorf("GC was executed for %q", got)
	}
	want = append(want, stays)
	got := n.files()
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("host-local has %q, want %q", got, want)
	}
	if kept := programs.List(t, n.API); len(kept) != 3 {
		t.Errorf("after GC the agent has %+v", kept)
	}

	status := func(keys []string) error { _, err := n.Exec("STATUS", "", "", keys...); return err }
	must(t, status(plain), status(listed))
	n.tell("STATUS", "fail")
	programs.WantError(t, status(plain), 50, "keeper is not ready")
	programs.WantError(t, status(listed), 50, "network two as eth0: plugin keeper")
	n.tell("STATUS", "")

	must(t, os.Remove(filepath.Join(n.disk, stays)))
	_, err := n.Exec("DEL", "c2", two.Ref().Path, listed...)
	must(t, err)
	nettest.Eventually(t, "keeper to have the addresses of c2 back", func() bool { return len(n.files()) == 1 })
	n.del("c1", one, plain)
}
