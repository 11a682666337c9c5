package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/process"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) { programs.Main(m) }

// scripts numbers the scripts. Each has addresses of its own, since their agents share one
// network namespace.
var scripts atomic.Int64

// TestScripts runs the built program against a real agent. $ROOT is the agent's root, and
// its addresses begin with $IP4 and $IP6. The scripts have these commands of their own:
//
//	agent start|stop|kill            starts berthd, and waits until it serves; or ends berthd
//	agent freeze|thaw                makes berthd hang, or go on
//	attach CONTAINER NAMESPACE/NAME  makes a pod; its attachment's ID is $CONTAINER
//	detach CONTAINER                 has the plugin do the DEL of the container
//	inside CONTAINER COMMAND...      runs a command in the pod's network namespace; VETH is the pod's host veth
//	host CONTAINER COMMAND...        runs a command in the node's network namespace, likewise
//	unlink CONTAINER                 deletes the pod's link behind the agent's back
//	stranger NAME [ADDRESS]          makes somebody else's link with an address; without an address, removes it
//	field NAME FILE PATH...          puts a value of a JSON file into $NAME
func TestScripts(t *testing.T) {
	nettest.Need(t)
	bin := programs.Own(t)
	deployed, err := filepath.Abs("../../deploy")
	must(t, err)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			n := scripts.Add(1)
			rootDir := filepath.Join(env.WorkDir, "root")
			env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("BIN", bin)
			env.Setenv("DEPLOY", deployed)
			env.Setenv("ROOT", rootDir)
			env.Setenv("IP4", fmt.Sprintf("10.9.%d", n))
			env.Setenv("IP6", fmt.Sprintf("fd09:%x:", n))
			a := &scriptAgent{t: t, bin: bin, root: rootDir, pool: fmt.Sprintf("default=10.9.%d.0/28,fd09:%x::/64", n, n), pods: map[string]*ns.Netns{}, results: map[string][]byte{}}
			env.Values["agent"] = a
			env.Defer(a.clean)
			return os.Mkdir(rootDir, 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"agent": func(ts *testscript.TestScript, neg bool, args []string) {
				a := ts.Value("agent").(*scriptAgent)
				ts.Check(map[string]func() error{"start": a.start, "stop": a.stop, "kill": a.kill, "freeze": a.freeze, "thaw": a.thaw}[args[0]]())
			},
			"attach": func(ts *testscript.TestScript, neg bool, args []string) {
				id, err := ts.Value("agent").(*scriptAgent).attach(args[0], args[1])
				ts.Check(err)
				ts.Setenv(args[0], id)
			},
			"unlink": func(ts *testscript.TestScript, neg bool, args []string) {
				ts.Check(ts.Value("agent").(*scriptAgent).unlink(args[0]))
			},
			"detach": func(ts *testscript.TestScript, neg bool, args []string) {
				ts.Check(ts.Value("agent").(*scriptAgent).detach(args[0]))
			},
			"inside": func(ts *testscript.TestScript, neg bool, args []string) {
				a := ts.Value("agent").(*scriptAgent)
				ts.Check(a.pods[args[0]].Do(func() error { return a.run(args[0], args[1:]) }))
			},
			"host": func(ts *testscript.TestScript, neg bool, args []string) {
				ts.Check(ts.Value("agent").(*scriptAgent).run(args[0], args[1:]))
			},
			"stranger": stranger,
			"field":    field,
		},
	})
}

// stranger makes a link of the node's that is not Berth's, or removes it.
func stranger(ts *testscript.TestScript, neg bool, args []string) {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: args[0]}, PeerName: args[0] + "p"}
	if len(args) == 1 {
		ts.Check(netlink.LinkDel(link))
		return
	}
	ts.Check(netlink.LinkAdd(link))
	addr, err := netlink.ParseAddr(args[1])
	ts.Check(err)
	ts.Check(netlink.AddrAdd(link, addr))
}

// field finds a value in a JSON file by keys of objects and indexes of arrays.
func field(ts *testscript.TestScript, neg bool, args []string) {
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[1])), &v))
	for _, step := range args[2:] {
		switch at := v.(type) {
		case map[string]any:
			v = at[step]
		case []any:
			i, err := strconv.Atoi(step)
			ts.Check(err)
			v = at[i]
		default:
			ts.Fatalf("%v has no %s", v, step)
		}
	}
	ts.Setenv(args[0], fmt.Sprint(v))
}

// scriptAgent is a script's berthd and its pods.
type scriptAgent struct {
	t               *testing.T
	bin, root, pool string
	cmd             *exec.Cmd
	pods            map[string]*ns.Netns
	results         map[string][]byte // of the ADDs, by container, for their DELs
}

func (a *scriptAgent) client() *client.Client { return client.New(root.Dir(a.root).Socket()) }

func (a *scriptAgent) start() error {
	args := []string{"--root", a.root, "--pool", a.pool}
	if a.cmd == nil { // scripts share a namespace, in which another script's agent may be away
		args = append(args, "--moved")
	}
	a.cmd = exec.Command(filepath.Join(a.bin, "berthd"), args...)
	a.cmd.Stderr = a.t.Output()
	if err := a.cmd.Start(); err != nil {
		return err
	}
	c := a.client()
	defer c.Close()
	nettest.Eventually(a.t, "berthd to serve", func() bool {
		h, err := c.Health(context.Background())
		return err == nil && h.Serving
	})
	return nil
}

func (a *scriptAgent) stop() error {
	if err := a.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	return a.cmd.Wait()
}

func (a *scriptAgent) kill() error {
	if err := a.cmd.Process.Kill(); err != nil {
		return err
	}
	_ = a.cmd.Wait() // its error says that the process was killed
	return nil
}

// freeze makes the agent hang, and thaw ends that.
func (a *scriptAgent) freeze() error { return process.Freeze(a.cmd.Process.Pid) }
func (a *scriptAgent) thaw() error   { return a.cmd.Process.Signal(syscall.SIGCONT) }

// clean ends the agent and detaches the pods that a script has left.
func (a *scriptAgent) clean() {
	if a.cmd != nil && a.cmd.ProcessState == nil {
		_ = a.kill()
	}
	for _, pod := range a.pods {
		nettest.Delete(a.t, pod)
	}
}

// attach makes a pod and attaches it through the plugin.
func (a *scriptAgent) attach(container, pod string) (id string, err error) {
	a.pods[container] = nettest.Pod(a.t)
	namespace, name, _ := strings.Cut(pod, "/")
	if err := a.plugin("ADD", container, "CNI_ARGS=K8S_POD_NAMESPACE="+namespace+";K8S_POD_NAME="+name); err != nil {
		return "", err
	}
	at, err := a.of(container)
	return at.ID, err
}

func (a *scriptAgent) detach(container string) error { return a.plugin("DEL", container) }

// plugin executes the plugin for a container's eth0.
func (a *scriptAgent) plugin(verb, container string, env ...string) error {
	cmd := exec.Command(filepath.Join(a.bin, "berth-cni"))
	prev := ""
	if result := a.results[container]; result != nil {
		prev = `,"prevResult":` + string(result)
	}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","type":"berth-cni","root":%q%s}`, a.root, prev))
	cmd.Env = append(append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+container, "CNI_IFNAME=eth0", "CNI_PATH="+a.bin,
		"CNI_NETNS="+a.pods[container].Ref().Path), env...)
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s of %s: %w: %s", verb, container, err, out)
	}
	if verb == "ADD" {
		a.results[container] = out
	}
	return nil
}

// run runs a command; VETH in it is a container's host veth.
func (a *scriptAgent) run(container string, command []string) error {
	if i := slices.Index(command, "VETH"); i >= 0 {
		at, err := a.of(container)
		if err != nil {
			return err
		}
		command[i] = at.HostVeth
	}
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", command, err, out)
	}
	return nil
}

func (a *scriptAgent) of(container string) (api.Attachment, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := a.client()
	defer c.Close()
	list, err := c.List(ctx, api.Filter{Container: container})
	if err != nil || len(list) != 1 {
		return api.Attachment{}, fmt.Errorf("%d attachments of %s: %w", len(list), container, err)
	}
	return list[0], nil
}

// unlink is `ip link delete` of a container's host veth.
func (a *scriptAgent) unlink(container string) error {
	at, err := a.of(container)
	if err != nil {
		return err
	}
	l, err := netlink.LinkByName(at.HostVeth)
	if err != nil {
		return err
	}
	return netlink.LinkDel(l)
}
