package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/stamp"
)

// On a disk that hangs, such as one that is frozen or whose server is away, the plugin can
// promise nothing. DEL says so in time, and cuts the pod off all the same.
func TestDiskHangs(t *testing.T) {
	a := newAway(t, t.TempDir())
	ended := nettest.Goroutines(t)
	heal := nettest.Hang(t, root.Dir(a.root).State())
	status, out, _ := inside(t, podEnv("DEL"), strings.NewReader(conf(a.root, prevResult(ownLink))), false)
	if status != 1 || failure(t, []byte(out)) != 11 || !strings.Contains(out, "the plugin could not queue the deletion") ||
		!strings.Contains(out, "the disk has not answered in time") {
		t.Errorf("%d %s", status, out)
	}
	if got := a.down(); got != ownLink {
		t.Errorf("down are %q", got)
	}
	// The plugin's process would have ended by now. This one goes on to queue the deletion when the disk answers,
	// and would do it in a folder that the test removes.
	heal()
	ended()
}

// A program of the pod uses the pod's end of a link that an ADD has made by half. DEL deletes the link, and
// the plugin's process ends, for which the runtime waits, although the program goes on.
func TestHalfMadeLinkIsUsed(t *testing.T) {
	a := newAway(t, t.TempDir())
	pod := nettest.Pod(t)
	a.lead(ownLink, pod, "eth0")
	a.stamp(ownLink, key)
	groups, err := stamp.GroupsOf(ownLink[1:])
	must(t, err)
	own := nettest.Link(t, ownLink)
	must(t, netlink.LinkSetGroup(own, int(groups.Coming())))
	must(t, netlink.LinkSetUp(own)) // only a running link can be held
	letGo := nettest.HoldLink(t, pod, "eth0")
	cmd := exec.Command(filepath.Join(bin, "berth-cni"))
	cmd.Env = environ(podEnv("DEL"), pod)
	cmd.Stdin = strings.NewReader(conf(a.root, prevResult(ownLink)))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := netlink.LinkByIndex(own.Attrs().Index); err == nil {
		t.Error("the link is there")
	}
	a.one()
	letGo()
}

// The path of a pod's namespace may be on a file system that hangs. DEL does not need the
// namespace, and succeeds in time.
func TestNetnsPathHangs(t *testing.T) {
	a := newAway(t, t.TempDir())
	dir := t.TempDir()
	nettest.Hang(t, dir)
	env := podEnv("DEL")
	env["CNI_NETNS"] = filepath.Join(dir, "netns")
	status, out, _ := inside(t, env, strings.NewReader(conf(a.root, prevResult(ownLink))), false)
	if status != 0 || a.down() != ownLink {
		t.Errorf("%d %s; down are %q", status, out, a.down())
	}
	a.one()
}

// ADD and CHECK need the namespace, and say in time that they cannot open it.
func TestNetnsPathHangsForADDAndCHECK(t *testing.T) {
	for _, command := range []string{"ADD", "CHECK"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			nettest.Hang(t, dir)
			env := podEnv(command)
			env["CNI_NETNS"] = filepath.Join(dir, "netns")
			status, out, _ := inside(t, env, strings.NewReader(conf(t.TempDir(), "")), false)
			if status != 1 || failure(t, []byte(out)) != 11 || !strings.Contains(out, "the network namespace's path has not answered in time") {
				t.Errorf("%d %s", status, out)
			}
		})
	}
}

// With too few file descriptors to look into the pod, DEL does not say that the pod is cut
// off: it has seen no link, but there may be one.
func TestTooFewFileDescriptors(t *testing.T) {
	for files, cut := 6, false; !cut; files++ { // with fewer a Go program does not start
		if files > 32 {
			t.Fatal("32 file descriptors do not suffice")
		}
		a := newAway(t, t.TempDir())
		pod := nettest.Pod(t)
		a.lead(ownLink, pod, "eth0")
		a.stamp(ownLink, key)
		cmd := exec.Command("sh", "-c", fmt.Sprintf("ulimit -n %d; exec %s", files, filepath.Join(bin, "berth-cni")))
		cmd.Env = environ(podEnv("DEL"), pod)
		cmd.Stdin = strings.NewReader(conf(a.root, ""))
		out, err := cmd.CombinedOutput()
		cut = a.down() == ownLink
		if (err == nil) != cut {
			t.Errorf("with %d: %v, down are %q: %.200s", files, err, a.down(), out)
		}
		a.remove(ownLink)
		a.remove(otherLink)
		a.remove(alien)
	}
}

// With too few file descriptors, ADD and CHECK say "try again": the environment is as it should be.
func TestTooFewFileDescriptorsForADDAndCHECK(t *testing.T) {
	pod := nettest.Pod(t)
	for _, command := range []string{"ADD", "CHECK"} {
		for files := 6; files < 12; files++ {
			cmd := exec.Command("sh", "-c", fmt.Sprintf("ulimit -n %d; exec %s", files, filepath.Join(bin, "berth-cni")))
			cmd.Env = environ(podEnv(command), pod)
			cmd.Stdin = strings.NewReader(conf(t.TempDir(), ""))
			out, err := cmd.Output()
			if cmd.ProcessState.ExitCode() == 2 {
				continue // Go's runtime has ended the program: it found no room for its epoll
			}
			if err == nil || failure(t, out) != 11 {
				t.Errorf("%s with %d: %v %s", command, files, err, out)
			}
		}
	}
}

// ADD and CHECK also say "try again" if they can open everything but the namespace.
func TestNoFileDescriptorForTheNamespace(t *testing.T) {
	pod := nettest.Pod(t)
	for _, command := range []string{"ADD", "CHECK"} {
		var out string
		nettest.Eventually(t, command+" to open the namespace before Go's runtime opens its epoll", func() bool {
			var status int
			out, status = withoutFiles(t, command, pod)
			return status != 2
		})
		if failure(t, []byte(out)) != 11 || !strings.Contains(out, "too many open files") {
			t.Errorf("%s: %s", command, out)
		}
	}
}

// withoutFiles runs the plugin, which can open no more files once it reads its stdin. It returns the
// plugin's answer and exit status.
func withoutFiles(t *testing.T, command string, pod *ns.Netns) (out string, status int) {
	t.Helper()
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	var stdout strings.Builder
	cmd := exec.Command(filepath.Join(bin, "berth-cni"))
	cmd.Env, cmd.Stdin, cmd.Stdout = environ(podEnv(command), pod), r, &stdout
	must(t, cmd.Start())
	config := conf(t.TempDir(), "")
	_, err = io.WriteString(w, config[:1])
	must(t, err)
	nettest.Eventually(t, "the plugin to read", func() bool {
		waiting, err := unix.IoctlGetInt(int(r.Fd()), unix.TIOCINQ)
		must(t, err)
		return waiting == 0
	})
	free := 0
	for {
		if _, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", cmd.Process.Pid, free)); err != nil {
			break
		}
		free++
	}
	none := &unix.Rlimit{Cur: uint64(free), Max: uint64(free)}
	must(t, unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_NOFILE, none, nil))
	_, err = io.WriteString(w, config[1:])
	must(t, err)
	must(t, w.Close())
	_ = cmd.Wait() // the exit status tells
	return stdout.String(), cmd.ProcessState.ExitCode()
}

// environ returns variables of CNI with the pod's namespace, as a process takes them.
func environ(env map[string]string, pod *ns.Netns) []string {
	all := []string{"CNI_NETNS=" + pod.Ref().Path}
	for name, value := range env {
		if name != "CNI_NETNS" {
			all = append(all, name+"="+value)
		}
	}
	return all
}
