package delegate_test

import (
	"crypto/md5"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/delegate"
	"github.com/berth-net/berth/internal/nettest"
)

var must = nettest.Must

// asPlugin is set in the environment of this program when it is a plugin; its value is the folder of the plugin's files.
const asPlugin = "BERTH_TEST_PLUGIN"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asPlugin); dir != "" {
		if err := plugin(dir); err != nil {
			fmt.Printf(`{"cniVersion":"1.0.0","code":100,"msg":%q}`, err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	nettest.Main(m)
}

// plugin is a plugin that makes a bridge in the pod, under the interface's name, and keeps a file for it, as an IPAM plugin does. It
// writes into a log what it is asked. GC removes the files of attachments that are not valid. A file FAIL.TYPE.VERB makes it fail after its work.
func plugin(dir string) error {
	in, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var conf struct {
		Type, Name, CNIVersion string
		IPAM                   struct{ Type string }
		Valid                  []types.GCAttachment `json:"cni.dev/valid-attachments"`
	}
	if err := json.Unmarshal(in, &conf); err != nil {
		return err
	}
	verb, ifname := os.Getenv("CNI_COMMAND"), os.Getenv("CNI_IFNAME")
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Fprintf(log, "%s %s netns=%t %s\n", conf.Type, verb, os.Getenv("CNI_NETNS") != "", in)
	file := filepath.Join(dir, "state", conf.Type+"-"+os.Getenv("CNI_CONTAINERID")+"-"+ifname)
	switch verb {
	case "ADD":
		if _, err := os.Stat(file); err == nil {
			return fmt.Errorf("%s was added already", file)
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			return err
		}
		if conf.Type == "maker" {
			if err := inPod(func(c *rtnl.Conn) error { return c.Do(rtnl.AddBridge(rtnl.Bridge{Name: ifname})) }); err != nil {
				return err
			}
		}
	case "GC":
		if err := collect(filepath.Join(dir, "state", conf.Type+"-"), conf.Valid); err != nil {
			return err
		}
	case "DEL":
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			return err
		}
		if conf.Type == "maker" && os.Getenv("CNI_NETNS") != "" {
			if err := inPod(func(c *rtnl.Conn) error { _ = c.Do(rtnl.DelLink(ifname)); return nil }); err != nil {
				return err
			}
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "FAIL."+conf.Type+"."+verb)); err == nil {
		return fmt.Errorf("%s of %s fails, as it was told", verb, conf.Type)
	}
	if conf.IPAM.Type != "" && verb == "ADD" {
		pod := md5.Sum([]byte(os.Getenv("CNI_CONTAINERID")))
		fmt.Printf(`{"cniVersion":%q,"ips":[{"address":"10.%d.%d.%d/8"}]}`, conf.CNIVersion, pod[0], pod[1], pod[2])
	} else if verb == "ADD" {
		fmt.Printf(`{"cniVersion":%q,"interfaces":[{"name":%q,"sandbox":%q}],"ips":[{"address":"10.1.2.3/24"}]}`,
			conf.CNIVersion, ifname, os.Getenv("CNI_NETNS"))
	}
	return nil
}

// collect removes the files with a prefix that belong to no valid attachment.
func collect(prefix string, valid []types.GCAttachment) error {
	files, err := filepath.Glob(prefix + "*")
	for _, file := range files {
		if !slices.ContainsFunc(valid, func(a types.GCAttachment) bool { return file == prefix+a.ContainerID+"-"+a.IfName }) {
			err = errors.Join(err, os.Remove(file))
		}
	}
	return err
}

func inPod(f func(*rtnl.Conn) error) error {
	at, err := ns.Open(os.Getenv("CNI_NETNS"))
	if err != nil {
		return err
	}
	defer at.Close()
	c, err := rtnl.Open(at)
	if err != nil {
		return err
	}
	defer c.Close()
	return f(c)
}

// world has the plugins maker and other, and a run of the agent.
type world struct {
	t   testing.TB
	dir string
	*delegate.Delegates
}

func newWorld(t testing.TB) *world {
	nettest.Need(t)
	w := &world{t: t, dir: t.TempDir()}
	self, err := os.Executable()
	must(t, err, os.Mkdir(filepath.Join(w.dir, "state"), 0o700), os.Mkdir(w.bin(), 0o700))
	for _, name := range []string{"maker", "other"} {
		must(t, os.WriteFile(filepath.Join(w.bin(), name), fmt.Appendf(nil, "#!/bin/sh\n%s=%s exec %s\n", asPlugin, w.dir, self), 0o700))
	}
	w.run("first")
	return w
}

func (w *world) bin() string { return filepath.Join(w.dir, "bin") }

// run begins another run of the agent.
func (w *world) run(name string) {
	w.Delegates = delegate.New(delegate.Options{
		Exec: &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: io.Discard}}, Run: name,
		Open: func(r ns.Ref) (ns.Handle, error) {
			n, err := r.Open()
			if err != nil {
				return nil, err
			}
			return n, nil
		},
	})
}

// spec returns a network of maker and other in a pod of its own.
func (w *world) spec(t testing.TB, owner hold.ID) *delegate.Spec {
	return &delegate.Spec{
		ID: owner, Network: "net-a", Version: "1.0.0", Container: "pod" + string(owner), Netns: nettest.Pod(t).Ref(), Ifname: "net1",
		Plugins: []string{`{"type":"maker","key":{"a":1}}`, `{"type":"other"}`},
		Args:    "A=b", Folders: []string{w.bin()}, Run: w.Run,
	}
}

func (w *world) hold() (hold.Hold, *delegate.Spec) {
	id := hold.NewID()
	s := w.spec(w.t, id)
	return hold.Hold{Owner: id, Spec: s}, s
}

// verbs returns what the plugins were asked since the last call: type, verb, and whether there was a network namespace.
func (w *world) verbs() (all []string) {
	for _, line := range w.log() {
		f := strings.Fields(line)
		all = append(all, strings.Join(f[:3], " "))
	}
	return all
}

func (w *world) log() (lines []string) {
	raw, err := os.ReadFile(filepath.Join(w.dir, "log"))
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	_ = os.Remove(filepath.Join(w.dir, "log"))
	for line := range strings.Lines(string(raw)) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}

func (w *world) state() (names []string) {
	entries, err := os.ReadDir(filepath.Join(w.dir, "state"))
	must(w.t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}

// fails makes a plugin's verb fail until heal is called.
func (w *world) fails(name, verb string) (heal func()) {
	file := filepath.Join(w.dir, "FAIL."+name+"."+verb)
	must(w.t, os.WriteFile(file, nil, 0o600))
	return func() { must(w.t, os.Remove(file)) }
}

// delLink deletes a pod's interface behind the plugins' back.
func delLink(t testing.TB, s *delegate.Spec) {
	at, err := s.Netns.Open()
	must(t, err)
	defer at.Close()
	c, err := rtnl.Open(at)
	must(t, err)
	defer c.Close()
	must(t, c.Do(rtnl.DelLink(s.Ifname)))
}
