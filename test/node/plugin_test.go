package node

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// command is berth-cni as a runtime runs it, in the network "net". pod is the path of a
// network namespace, keys are further keys of the configuration.
func (a *agent) command(verb, container, pod string, keys ...string) *exec.Cmd {
	return a.commandIn("net", verb, container, pod, keys...)
}

func (a *agent) commandIn(network, verb, container, pod string, keys ...string) *exec.Cmd {
	cmd := programs.Plugin(a.bin, verb, container, pod)
	cmd.Stdin = strings.NewReader(programs.Conf(string(a.root), append([]string{fmt.Sprintf(`"name":%q`, network)}, keys...)...))
	return cmd
}

// exec runs a command.
func (a *agent) exec(verb, container, pod string, keys ...string) ([]byte, error) {
	return a.execIn("net", verb, container, pod, keys...)
}

func (a *agent) execIn(network, verb, container, pod string, keys ...string) ([]byte, error) {
	return programs.Exec(a.bin, string(a.root), verb, container, pod, append([]string{fmt.Sprintf(`"name":%q`, network)}, keys...)...)
}

// attached is the result of an ADD.
type attached struct {
	addrs []netip.Addr
	host  string // host veth
}

func (a *agent) tryAdd(container string, pod *ns.Netns, keys ...string) (attached, error) {
	raw, err := a.exec("ADD", container, pod.Ref().Path, keys...)
	if err != nil {
		return attached{}, err
	}
	got, err := programs.ReadResult(raw)
	return attached{got.Addrs, got.Host}, err
}

func (a *agent) add(container string, pod *ns.Netns, keys ...string) attached {
	a.t.Helper()
	got, err := a.tryAdd(container, pod, keys...)
	if err != nil {
		a.t.Fatalf("ADD of %s: %v", container, err)
	}
	return got
}

func (a *agent) tryDel(container, pod string, keys ...string) error {
	_, err := a.exec("DEL", container, pod, keys...)
	return err
}

func (a *agent) del(container string, keys ...string) {
	a.t.Helper()
	if err := a.tryDel(container, "", keys...); err != nil {
		a.t.Errorf("DEL of %s: %v", container, err)
	}
}

// wait has a DEL answered when all is gone.
const wait = `"wait":true`

// podsOf makes pods, and attaches one container to each, named by its number.
// When it returns, the kernel has done what it does by itself some time after a
// link is up, so that snapshots can be compared.
func (a *agent) podsOf(n int, keys ...string) (pods []*ns.Netns, got []attached) {
	a.t.Helper()
	for i := range n {
		pods = append(pods, nettest.Pod(a.t))
		got = append(got, a.add(fmt.Sprint("c", i), pods[i], keys...))
	}
	for _, g := range got {
		if g.addrs[len(g.addrs)-1].Is4() {
			continue
		}
		programs.Settled(a.t, a.node, g.host)
	}
	return pods, got
}

// pingAll pings all addresses of a pod.
func pingAll(t testing.TB, from *ns.Netns, to attached) {
	t.Helper()
	for _, addr := range to.addrs {
		nettest.Ping(t, from, addr)
	}
}
