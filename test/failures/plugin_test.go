package failures

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// call is one run of the plugin, as a runtime executes it.
type call struct {
	verb, container string
	netns           string   // path
	args            string   // CNI_ARGS
	keys            []string // of the configuration, beside or in place of the keys that every configuration has
	path            string   // of the plugin; "": the one that was built
}

// run is a plugin that has started and waits for its stdin.
type run struct {
	call
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	conf  string
	out   bytes.Buffer
	err   bytes.Buffer
}

// begin starts the plugin, and returns when the plugin has noted the time of its beginning, by
// which the agent puts verbs in their order. The plugin then waits for its stdin.
func (n *node) begin(c call) *run {
	n.t.Helper()
	r := &run{call: c, t: n.t}
	r.conf = programs.Conf(n.Root, c.keys...)
	r.cmd = programs.Plugin(n.bin, c.verb, c.container, c.netns)
	r.cmd.Env = append(r.cmd.Env, "CNI_ARGS="+c.args)
	if c.path != "" {
		r.cmd.Path = c.path
	}
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.err
	from, to, err := os.Pipe()
	must(n.t, err)
	r.cmd.Stdin, r.stdin = from, to
	must(n.t, r.cmd.Start())
	from.Close()
	fmt.Fprint(to, " ") // JSON allows a blank there
	nettest.Eventually(n.t, "the plugin to read", func() bool {
		left, err := unix.IoctlGetInt(int(to.Fd()), unix.TIOCINQ)
		return err == nil && left == 0
	})
	return r
}

// feed gives the plugin its stdin.
func (r *run) feed() {
	fmt.Fprint(r.stdin, r.conf)
	r.stdin.Close()
}

// asks feeds the plugin and waits until it has connected to the agent.
func (r *run) asks() {
	r.t.Helper()
	r.feed()
	nettest.Eventually(r.t, "the plugin to ask the agent", func() bool {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.cmd.Process.Pid))
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); strings.HasPrefix(to, "socket:") {
				return true
			}
		}
		return false
	})
}

// end waits for the plugin to end. If the plugin fails, the error is an *api.Error.
func (r *run) end() ([]byte, error) {
	err := r.cmd.Wait()
	if err == nil {
		return r.out.Bytes(), nil
	}
	return nil, programs.Refusal(r.out.Bytes(), fmt.Sprintf("%s of %s: %v", r.verb, r.container, err), r.err.String())
}

// exec runs the plugin to its end.
func (n *node) exec(c call) ([]byte, error) {
	n.t.Helper()
	r := n.begin(c)
	r.feed()
	return r.end()
}

// attached is the result of an ADD.
type attached struct {
	netip.Addr        // the first address
	host       string // host veth
	result     string
	pod        *ns.Netns // nil if the test knows the pod otherwise
}

// prevResult is the key of a configuration that has an ADD's result.
func (a attached) prevResult() string { return `"prevResult":` + a.result }

func (n *node) tryAdd(container string, pod *ns.Netns, keys ...string) (attached, error) {
	n.t.Helper()
	return parse(n.exec(call{verb: "ADD", container: container, netns: pod.Ref().Path, keys: keys}))
}

func parse(raw []byte, err error) (attached, error) {
	if err != nil {
		return attached{}, err
	}
	got, err := programs.ReadResult(raw)
	if err != nil {
		return attached{}, err
	}
	return attached{Addr: got.Addrs[0], host: got.Host, result: got.Raw}, nil
}

func (n *node) add(container string, pod *ns.Netns, keys ...string) attached {
	n.t.Helper()
	got, err := n.tryAdd(container, pod, keys...)
	if err != nil {
		n.t.Fatalf("ADD of %s: %v", container, err)
	}
	return got
}

func (n *node) tryDel(container string, keys ...string) error {
	n.t.Helper()
	_, err := n.exec(call{verb: "DEL", container: container, keys: keys})
	return err
}

func (n *node) del(container string, keys ...string) {
	n.t.Helper()
	if err := n.tryDel(container, keys...); err != nil {
		n.t.Fatalf("DEL of %s: %v", container, err)
	}
}

// wait has a DEL answered when all is gone.
const wait = `"wait":true`

// collect is a GC for which these containers are valid.
func (n *node) collect(valid ...string) {
	n.t.Helper()
	if _, err := n.exec(call{verb: "GC", keys: []string{validKey(valid...)}}); err != nil {
		n.t.Fatalf("GC: %v", err)
	}
}

// validKey is the key of a GC's configuration that names the valid containers.
func validKey(containers ...string) string {
	valid := []string{}
	for _, c := range containers {
		valid = append(valid, fmt.Sprintf(`{"containerID":%q,"ifname":"eth0"}`, c))
	}
	return `"cni.dev/valid-attachments":[` + strings.Join(valid, ",") + `]`
}
