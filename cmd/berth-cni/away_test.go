package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// queued returns the deletions that wait at a root, in their order.
func queued(dir string) ([]deletions.Record, error) {
	q, err := deletions.Open(root.Dir(dir))
	if err != nil {
		return nil, err
	}
	defer q.Close()
	entries, err := q.Pending()
	var all []deletions.Record
	for _, e := range entries {
		all = append(all, e.Record)
	}
	return all, err
}

// Links of the tests: of the agent at the root, of another agent, and of
// nobody that Berth knows.
const (
	ownLink   = "babcdefghij2345"
	otherLink = "bzzzzefghij2345"
	alien     = "veth0"
)

// away is a root without an agent, and links on its node.
type away struct {
	*testing.T
	root  string
	links []string
}

// newAway makes the links anew, all up.
func newAway(t *testing.T, dir string) *away {
	t.Helper()
	nettest.Need(t)
	a := &away{T: t, root: dir, links: []string{ownLink, otherLink, alien}}
	a.must(os.MkdirAll(root.Dir(dir).State(), 0o700))
	a.must(os.WriteFile(root.Dir(dir).Instance(), []byte("abcd234567\n"), 0o600))
	for i, name := range a.links {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, Flags: net.FlagUp}, PeerName: fmt.Sprintf("peer%d", i)}
		a.must(netlink.LinkAdd(link)) // ip link add NAME up type veth peer name peerN
		t.Cleanup(func() { netlink.LinkDel(link) })
	}
	return a
}

func (a *away) must(err error) {
	a.Helper()
	if err != nil {
		a.Fatal(err)
	}
}

// down returns which links are not up.
func (a *away) down() string {
	a.Helper()
	var down []string
	for _, name := range a.links {
		if link, err := netlink.LinkByName(name); err != nil || link.Attrs().Flags&net.FlagUp == 0 {
			down = append(down, name)
		}
	}
	return strings.Join(down, " ")
}

// prevResult is a result with interfaces on the host, and one address.
func prevResult(links ...string) string {
	var all string
	for _, name := range links {
		all += fmt.Sprintf(`{"name":%q},`, name)
	}
	return `"prevResult":{"cniVersion":"1.1.0","interfaces":[` + all + `{"name":"eth0","sandbox":"/run/netns/c1"}],"ips":[{"address":"10.88.0.7/32"}]}`
}

// del runs the built plugin, and returns what it prints.
func (a *away) del(keys string) (out string, code uint) {
	a.Helper()
	return execute(a.T, podEnv("DEL"), strings.NewReader(conf(a.root, keys)))
}

// one returns the one deletion that is queued.
func (a *away) one() deletions.Record {
	a.Helper()
	all, err := queued(a.root)
	if err != nil || len(all) != 1 {
		a.Fatalf("queued are %+v, %v", all, err)
	}
	return all[0]
}

// Whatever keeps the agent from answering: the pod is cut off, and the deletion
// is queued (cilium #22067 and #40931: pods stuck or leaked while the agent is
// away).
func TestAway(t *testing.T) {
	for name, test := range map[string]struct {
		agent  func(t *testing.T, dir root.Dir)
		reason string
	}{
		"no socket": {func(*testing.T, root.Dir) {}, "no such file or directory"},
		"refused":   {staleSocket, "connection refused"},
		"no folder": {func(t *testing.T, dir root.Dir) {
			if err := os.WriteFile(filepath.Join(string(dir), "run"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "not a directory"},
		"full": {func(t *testing.T, dir root.Dir) {
			start(t, string(dir), func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(500)
				fmt.Fprint(w, `{"code":5,"msg":"disk full"}`)
			})
		}, "the agent answers with HTTP status 500: disk full"},
		"restoring": {func(t *testing.T, dir root.Dir) {
			start(t, string(dir), func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(503)
				fmt.Fprint(w, `{"code":11,"msg":"restoring"}`)
			})
		}, "the agent answers with HTTP status 503: restoring"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAway(t, t.TempDir())
			test.agent(t, root.Dir(a.root))
			began := boottime.Now()
			if out, code := a.del(prevResult(alien, ownLink)); code != 0 || out != "" {
				t.Fatalf("code %d: %s", code, out)
			}
			if got := a.down(); got != ownLink {
				t.Errorf("down are %q", got)
			}
			r := a.one()
			if !strings.Contains(r.Reason, test.reason) {
				t.Errorf("the reason is %q", r.Reason)
			}
			if r.Started < began || r.Started > boottime.Now() {
				t.Errorf("started at %d, not since %d", r.Started, began)
			}
			want := deletions.Record{
				Network: "net", Container: "c1", Ifname: "eth0", Link: ownLink, Addresses: []string{"10.88.0.7"},
				Netns: "/proc/self/ns/net", Boot: bootID(t), Cut: true,
			}
			r.Started, r.Reason = 0, ""
			if !reflect.DeepEqual(r, want) {
				t.Errorf("queued is %+v, not %+v", r, want)
			}
		})
	}
}

func bootID(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

// staleSocket is what an agent leaves that was killed.
func staleSocket(t *testing.T, dir root.Dir) {
	a := &agent{root: string(dir)}
	if err := a.start(); err != nil {
		t.Fatal(err)
	}
	again := dir.Socket() + ".kept" // closing it removes the name
	if err := os.Link(dir.Socket(), again); err != nil {
		t.Fatal(err)
	}
	a.stop()
	if err := os.Rename(again, dir.Socket()); err != nil {
		t.Fatal(err)
	}
}

// Only what is known to be this agent's link is set down; the agent sees to the
// rest when it is back.
func TestCut(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*away)
		keys    string
		down    string
		link    string
		cut     bool
	}{
		"no prevResult":      {nil, "", "", "", false},
		"null":               {nil, `"prevResult":null`, "", "", false},
		"nonsense":           {nil, `"prevResult":"` + ownLink + `"`, "", "", false},
		"another plugin's":   {nil, prevResult(alien), "", "", false},
		"another agent's":    {nil, prevResult(otherLink), "", otherLink, false},
		"the pod's end":      {nil, `"prevResult":{"interfaces":[{"name":"` + ownLink + `","sandbox":"/run/netns/c1"}]}`, "", "", false},
		"ours":               {nil, prevResult(ownLink), ownLink, ownLink, true},
		"gone":               {func(a *away) { a.remove(ownLink) }, prevResult(ownLink), ownLink, ownLink, true},
		"down":               {func(a *away) { a.setDown(ownLink) }, prevResult(ownLink), ownLink, ownLink, true},
		"instance gone":      {func(a *away) { a.must(os.Remove(root.Dir(a.root).Instance())) }, prevResult(otherLink), otherLink, otherLink, true},
		"instance damaged":   {func(a *away) { a.must(os.Truncate(root.Dir(a.root).Instance(), 0)) }, prevResult(ownLink), ownLink, ownLink, true},
		"everything removed": {func(a *away) { a.must(os.RemoveAll(filepath.Join(a.root, "var"))) }, prevResult(ownLink), ownLink, ownLink, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAway(t, t.TempDir())
			if test.prepare != nil {
				test.prepare(a)
			}
			if out, code := a.del(test.keys); code != 0 || out != "" {
				t.Fatalf("code %d: %s", code, out)
			}
			if got := a.down(); got != test.down {
				t.Errorf("down are %q, not %q", got, test.down)
			}
			if r := a.one(); r.Link != test.link || r.Cut != test.cut || (r.Addresses != nil) != (test.link != "") {
				t.Errorf("queued is %+v", r)
			}
			// And again, as a runtime does that has not heard of the success.
			if out, code := a.del(test.keys); code != 0 || out != "" {
				t.Fatalf("again: code %d: %s", code, out)
			}
		})
	}
}

// The deletion is queued before the link goes down: an agent that sees that, and
// would mend it, has to find it.
func TestQueuedBeforeCut(t *testing.T) {
	a := newAway(t, t.TempDir())
	programs.Need(t, "strace")
	cmd := exec.Command("strace", "-f", "-o", filepath.Join(a.root, "strace"), "-e", "trace=renameat",
		"-e", "inject=renameat:signal=KILL", filepath.Join(bin, "berth-cni"))
	for k, v := range podEnv("DEL") {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stdin = strings.NewReader(conf(a.root, prevResult(ownLink)))
	out, err := cmd.CombinedOutput()
	if all, queueErr := queued(a.root); err == nil || len(out) > 0 || len(all) > 0 || queueErr != nil {
		t.Fatalf("killed before the deletion is queued: %v, %q; queued are %+v, %v", err, out, all, queueErr)
	}
	if got := a.down(); got != "" {
		t.Errorf("down are %q", got)
	}
}

// remove is `ip link delete NAME`.
func (a *away) remove(name string) {
	a.Helper()
	link, err := netlink.LinkByName(name)
	a.must(err)
	a.must(netlink.LinkDel(link))
}

// setDown is `ip link set NAME down`.
func (a *away) setDown(name string) {
	a.Helper()
	link, err := netlink.LinkByName(name)
	a.must(err)
	a.must(netlink.LinkSetDown(link))
}

// Where nothing can be promised, DEL says what is wrong, and the pod is cut off
// all the same.
func TestNotPromised(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(a *away, folder string)
		want    string
	}{
		"disk full": {func(a *away, folder string) { a.fill() }, "no space left on device"},
		"read-only": {func(a *away, folder string) {
			a.must(unix.Mount("", a.root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		}, "read-only file system"},
		"a file": {func(a *away, folder string) { a.must(os.WriteFile(folder, nil, 0o600)) }, "not a directory"},
		"a link": {func(a *away, folder string) { a.must(os.Symlink("/tmp", folder)) }, "opening "},
		"no state": {func(a *away, folder string) {
			a.must(os.RemoveAll(filepath.Dir(folder)))
			a.must(os.WriteFile(filepath.Dir(folder), nil, 0o600))
		}, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			nettest.Need(t)
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
				t.Fatal(err)
			}
			defer unix.Unmount(dir, unix.MNT_DETACH)
			a := newAway(t, dir)
			test.prepare(a, deletions.Path(root.Dir(dir)))
			out, code := a.del(prevResult(ownLink))
			if code != 11 || !strings.Contains(out, "the deletion is not promised") || !strings.Contains(out, test.want) || !strings.Contains(out, "berthd.sock: no such file") {
				t.Errorf("code %d: %s", code, out)
			}
			if got := a.down(); got != ownLink {
				t.Errorf("down are %q", got)
			}
		})
	}
}

// fill takes all that is left of the root's disk.
func (a *away) fill() {
	a.Helper()
	f, err := os.Create(filepath.Join(a.root, "filler"))
	a.must(err)
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		a.Fatal(err)
	}
}

// A full disk stops ADD first and DEL last.
func TestPromisedOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	nettest.Need(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	a := newAway(t, dir)
	q, err := deletions.Open(root.Dir(dir))
	a.must(err)
	if _, err := q.Refill(); err != nil {
		t.Fatal(err)
	}
	a.fill()
	if out, code := a.del(prevResult(ownLink)); code != 0 || out != "" {
		t.Fatalf("code %d: %s", code, out)
	}
	if r := a.one(); !r.Cut || a.down() != ownLink {
		t.Errorf("queued is %+v, down are %q", r, a.down())
	}
}

// A user who may do neither, and one who may only write.
func TestWithoutRights(t *testing.T) {
	programs.Root(t, "nobody else can become another user")
	for name, test := range map[string]struct {
		mode   os.FileMode
		want   string
		queued int
	}{
		"neither": {0o700, "permission denied", 0},
		"write":   {0o777, "the pod is not cut off", 1},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAway(t, t.TempDir())
			for path := root.Dir(a.root).State(); len(path) >= len(a.root); path = filepath.Dir(path) {
				a.must(os.Chmod(path, 0o755))
			}
			a.must(os.Chmod(filepath.Dir(a.root), 0o755))
			a.must(os.Chmod(root.Dir(a.root).State(), test.mode))
			cmd := exec.Command(filepath.Join(bin, "berth-cni"))
			for k, v := range podEnv("DEL") {
				cmd.Env = append(cmd.Env, k+"="+v)
			}
			cmd.Stdin = strings.NewReader(conf(a.root, prevResult(ownLink)))
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			out, err := cmd.Output()
			if err == nil || failure(t, out) != 11 || !strings.Contains(string(out), test.want) {
				t.Errorf("%v: %s", err, out)
			}
			all, err := queued(a.root)
			if err != nil || len(all) != test.queued {
				t.Errorf("queued are %+v, %v", all, err)
			}
			if got := a.down(); got != "" {
				t.Errorf("down are %q", got)
			}
		})
	}
}
