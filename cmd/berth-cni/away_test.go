package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/stamp"
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

// Links of the tests: one of the agent at the root, one of another agent, and one that is not
// Berth's.
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

// newAway makes the links anew, sets them up, and stamps them as an agent does.
func newAway(t *testing.T, dir string) *away {
	t.Helper()
	nettest.Need(t)
	a := &away{T: t, root: dir, links: []string{ownLink, otherLink, alien}}
	must(a, os.MkdirAll(root.Dir(dir).State(), 0o700))
	must(a, os.WriteFile(root.Dir(dir).Instance(), []byte("abcd234567\n"), 0o600))
	for i, name := range a.links {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, Flags: net.FlagUp}, PeerName: fmt.Sprintf("peer%d", i)}
		must(a, netlink.LinkAdd(link)) // ip link add NAME up type veth peer name peerN
		t.Cleanup(func() { netlink.LinkDel(link) })
	}
	a.stamp(ownLink, key)
	a.stamp(otherLink, key)
	return a
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

// one returns the only deletion that is queued.
func (a *away) one() deletions.Record {
	a.Helper()
	all, err := queued(a.root)
	if err != nil || len(all) != 1 {
		a.Fatalf("queued are %+v, %v", all, err)
	}
	return all[0]
}

// Whatever keeps the agent from answering, the plugin cuts the pod off, and queues the
// deletion (cilium #22067 and #40931: pods stuck or leaked while the agent is away).
func TestAway(t *testing.T) {
	for name, test := range map[string]struct {
		agent  func(t *testing.T, dir root.Dir)
		reason string
	}{
		"no socket": {func(*testing.T, root.Dir) {}, "no such file or directory"},
		"refused":   {staleSocket, "connection refused"},
		"no folder": {func(t *testing.T, dir root.Dir) {
			must(t, os.WriteFile(filepath.Join(string(dir), "run"), nil, 0o600))
		}, "not a directory"},
		"full": {func(t *testing.T, dir root.Dir) {
			start(t, string(dir), func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(500)
				fmt.Fprint(w, `{"code":5,"msg":"disk full"}`)
			})
		}, "the agent answers with HTTP status 500: disk full"},
		"taken": {func(t *testing.T, dir root.Dir) {
			start(t, string(dir), func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(409)
				fmt.Fprint(w, `{"code":101,"msg":"address not available"}`)
			})
		}, "the agent answers with HTTP status 409: address not available"},
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

// A pod whose network namespace and link are both gone, as after a reboot, cannot be reached:
// the queue says that it is cut off. That a link is not found by its names proves nothing while
// the pod may be there, or while the node has a link that may be the pod's: a link with the pod's
// alias, or a link of the agent's groups whose alias is nobody's.
func TestGoneIsCutOff(t *testing.T) {
	here, err := ns.Open("/proc/self/ns/net")
	must(t, err)
	defer here.Close()
	marker := func(boot string, inode uint64) func(*away) {
		return func(a *away) {
			must(a, os.MkdirAll(root.Dir(a.root).Run(), 0o700))
			text := fmt.Sprintf("%s/%d/%d/0\nabcd234567\n", boot, here.Ref().Dev, inode)
			must(a, os.WriteFile(root.Dir(a.root).Epoch(), []byte(text), 0o600))
		}
	}
	served := marker(bootID(t), here.Ref().Ino)
	const gone = "/run/netns/berth-none"
	file := filepath.Join(t.TempDir(), "unmounted")
	must(t, os.WriteFile(file, nil, 0o600))
	for name, test := range map[string]struct {
		netns   string
		prepare func(*away)
		cut     bool
	}{
		"all is gone":             {gone, served, true},
		"after a reboot":          {gone, func(*away) {}, true},
		"after a reboot, no path": {"", func(*away) {}, true},
		"unmounted":               {file, served, true},
		"unmounted by a reboot":   {file, func(*away) {}, true},
		"a folder":                {filepath.Dir(file), served, false},
		"an older boot's marker":  {"", marker("8a1f9c5e-0000-4000-8000-000000000000", 1), true},
		"no path":                 {"", served, false},
		"the pod is there":        {"/proc/self/ns/net", served, false},
		"there, and no marker":    {"/proc/self/ns/net", func(*away) {}, false},
		"no path to tell by":      {"/proc/self/ns/net/x", served, false},
		"the agent was elsewhere": {gone, marker(bootID(t), here.Ref().Ino+1), false},
		"its name": {gone, func(a *away) {
			link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: ownLink}, PeerName: "again"}
			must(a, netlink.LinkAdd(link))
			a.Cleanup(func() { netlink.LinkDel(link) })
		}, false},
		"another's link": {gone, func(a *away) { a.alias(alien, stamp.Alias("abcd234567", "bcdefghij2", another, 0)) }, true},
		"its alias":      {gone, func(a *away) { a.alias(alien, stamp.Alias("abcd234567", "bcdefghij2", key, 0)) }, false},
		"its group": {gone, func(a *away) {
			groups, err := stamp.GroupsOf("abcd")
			must(a, err)
			link, err := netlink.LinkByName(alien)
			must(a, err)
			must(a, netlink.LinkSetGroup(link, int(groups.Live())))
		}, false},
		"too many links to look at": {gone, func(a *away) {
			for i := range mostLinks / 2 {
				many := netlink.LinkAttrs{Name: fmt.Sprint("many", i), Group: 7}
				must(a, netlink.LinkAdd(&netlink.Veth{LinkAttrs: many, PeerName: fmt.Sprint("more", i)}))
			}
			a.Cleanup(func() {
				for i := range mostLinks / 2 {
					a.remove(fmt.Sprint("many", i))
				}
			})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAway(t, t.TempDir())
			a.remove(ownLink)
			a.alias(otherLink, "")
			test.prepare(a)
			env := podEnv("DEL")
			env["CNI_NETNS"] = test.netns
			if out, code := execute(t, env, strings.NewReader(conf(a.root, prevResult(ownLink)))); code != 0 || out != "" {
				t.Fatalf("code %d: %s", code, out)
			}
			if r := a.one(); r.Cut != test.cut || r.Again {
				t.Errorf("queued is %+v", r)
			}
		})
	}
}

func bootID(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	must(t, err)
	return strings.TrimSpace(string(raw))
}

// staleSocket makes the socket that a killed agent leaves.
func staleSocket(t *testing.T, dir root.Dir) {
	a := &agent{root: string(dir)}
	must(t, a.start())
	again := dir.Socket() + ".kept" // a second name keeps the socket, whatever a.stop does to the first name
	must(t, os.Link(dir.Socket(), again))
	a.stop()
	must(t, os.Rename(again, dir.Socket()))
}

// If an agent lives and could not cut the pod off, and the plugin finds no link, DEL does not
// succeed: the runtime repeats DEL. The deletion is queued all the same, and its record says that
// the runtime repeats DEL (Again).
func TestNobodyCutsOff(t *testing.T) {
	for name, test := range map[string]struct {
		result string
		code   uint
	}{
		"no result":        {"", 11},
		"another's":        {prevResult(alien), 11},
		"the pod's result": {prevResult(alien, ownLink), 0},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAway(t, t.TempDir())
			start(t, a.root, func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(503)
				fmt.Fprintf(w, `{"code":11,"msg":%q}`, cni.MsgReachable)
			})
			if out, code := a.del(test.result); code != test.code || code != 0 && !strings.Contains(out, "the pod is not cut off") {
				t.Errorf("code %d, want %d: %s", code, test.code, out)
			}
			if r := a.one(); r.Again != (test.code != 0) {
				t.Errorf("queued is %+v", r)
			}
		})
	}
}
