package containerd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// leaving is a node whose network was another CNI's, is Berth's, and becomes a third one's.
type leaving struct {
	*daemon
	t         *testing.T
	bin, root string
	agent     *programs.Agent
}

// A node leaves Berth under running pods: Berth's own, those of other plugins, those with addresses of an IPAM plugin, and adopted ones.
// containerd's network becomes another CNI's, whose plugin gets the DELs of all of them. The pods keep their network as long as they live;
// Berth refuses to go before them; each that ends leaves nothing; and when the last one has gone, Berth goes and leaves nothing.
func TestLeave(t *testing.T) {
	nettest.Need(t)
	needs(t)
	l := leaving{daemon: newDaemon(t), t: t, bin: programs.Own(t), root: t.TempDir()}
	f := ofBridge()
	f.install(t, l.daemon)
	must(t, os.Symlink(filepath.Join(programs.Peers(t, "ptp"), "ptp"), filepath.Join(l.dir, "cni/bin/ptp")))
	cacheAt(t, l.root)
	l.serve(t)
	each(t, "ending", l.start("before", 1), (*pod).end) // the bridge stays
	empty, adopted := look(t), l.start("adopted", 2)
	l.agent = programs.Run(t, l.bin, l.root, "default=10.88.0.0/16,fd88::/64")
	l.startRunner(t, l.bin, l.root)
	must(t, os.Remove(filepath.Join(l.dir, conflist)))
	installed := l.installed()
	l.berth("install", "--runtime", "containerd="+l.config())
	l.hasNetwork(t, "berth-cni")
	f.adopt(t, l.daemon, l.bin, l.root, adopted)
	own := l.start("own", 3)
	others := l.startBy("others", `"delegates":[{"cniVersion":"1.0.0","name":"others","type":"ptp","ipam":{"type":"host-local","subnet":"10.3.0.0/24","routes":[{"dst":"0.0.0.0/0"}]}}]`)
	lent := l.startBy("lent", `"ipam":{"type":"host-local","subnet":"10.4.0.0/24"}`)
	groups := [][]*pod{adopted, own, others, lent}

	l.write(t, map[string]string{"cni/net.d/05-next.conflist": `{"cniVersion":"1.0.0","name":"next","plugins":[{"type":"bridge","bridge":"next0","isGateway":true,"ipam":{"type":"host-local","subnet":"10.5.0.0/24","routes":[{"dst":"0.0.0.0/0"}]}}]}`})
	l.hasNetwork(t, `"Name": "next"`)
	next := l.start("next", 2)
	for _, g := range append(groups, next) {
		ring(t, g)
	}
	l.refuses("adopted0", "own0", "own2", "others1", "lent1")
	must(t, l.agent.Kill(), l.agent.Start(t.Context()))

	for _, g := range [][]*pod{adopted, others, lent, own[2:]} {
		each(t, "ending", g, (*pod).end)
	}
	nettest.Eventually(t, "the agent to have two pods of Berth's own", func() bool { return len(listed(t, l.root)) == 2 })
	l.agent.Audit(t)
	ring(t, own[:2])
	l.refuses("own0", "own1")

	// The last pods go while no agent hears of it.
	must(t, l.agent.Stop())
	l.refuses("own0", "own1")
	ring(t, own[:2])
	each(t, "ending", own[:2], (*pod).end)
	l.goes()
	ring(t, next)
	each(t, "ending", next, (*pod).end)
	nettest.Run(t, nil, "ip link del next0")
	nothingLeft(t, empty)
	must(t, os.Remove(filepath.Join(l.dir, "cni/net.d/05-next.conflist")))
	nettest.Same(t, installed, l.installed(), "left on the disk")
	for _, network := range []string{"bridge", "others", "lent", "next"} {
		former{name: network}.noFiles(t, l.daemon)
	}
}

// start runs n pods with containerd's network.
func (l leaving) start(name string, n int) []*pod {
	l.t.Helper()
	ps := l.newPods(n, 0)
	for i, p := range ps {
		p.name = fmt.Sprint(name, i)
	}
	each(l.t, "running", ps, (*pod).run)
	return ps
}

// startBy runs two pods with a network of Berth's plugin that has these keys, and goes back to the network of before.
func (l leaving) startBy(name, keys string) []*pod {
	l.t.Helper()
	file := "cni/net.d/05-" + name + ".conflist"
	l.write(l.t, map[string]string{file: fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"plugins":[{"type":"berth-cni","root":%q,"binDir":%q,%s}]}`,
		name, l.root, filepath.Join(l.dir, "cni/bin"), keys)})
	l.hasNetwork(l.t, `"Name": "`+name+`"`)
	defer func() {
		must(l.t, os.Remove(filepath.Join(l.dir, file)))
		l.hasNetwork(l.t, `"Name": "berth"`)
	}()
	return l.start(name, 2)
}

// installed is what plugins and configurations there are.
func (l leaving) installed() nettest.State {
	l.t.Helper()
	return nettest.Files(l.t, filepath.Join(l.dir, "cni"))
}

func (l leaving) command(program string, args ...string) (said string, err error) {
	out, err := exec.Command(filepath.Join(l.bin, program), append([]string{"--root", l.root}, args...)...).CombinedOutput()
	return string(out), err
}

// berth runs a command that has to succeed.
func (l leaving) berth(args ...string) {
	l.t.Helper()
	if said, err := l.command("berth", args...); err != nil {
		l.t.Fatalf("berth %s: %v\n%s", strings.Join(args, " "), err, said)
	}
}

// refuses wants Berth not to go, because of these pods, and to leave everything in place.
func (l leaving) refuses(pods ...string) {
	l.t.Helper()
	before := l.installed()
	said, err := l.command("berth", "uninstall")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 {
		l.t.Errorf("berth uninstall under pods: %v\n%s", err, said)
	}
	for _, name := range pods {
		if !strings.Contains(said, "default/"+name) {
			l.t.Errorf("berth uninstall does not name %s:\n%s", name, said)
		}
	}
	if said, err := l.command("berthd", "--remove"); err == nil {
		l.t.Errorf("berthd --remove under pods succeeds:\n%s", said)
	}
	nettest.Same(l.t, before, l.installed(), "berth uninstall refuses, and changes")
}

// goes takes Berth from the node, as docs/KUBERNETES.md has it.
func (l leaving) goes() {
	l.t.Helper()
	l.berth("uninstall")
	if said, err := l.command("berthd", "--remove"); err != nil {
		l.t.Errorf("berthd --remove: %v\n%s", err, said)
	}
}
