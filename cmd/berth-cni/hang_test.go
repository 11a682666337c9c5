package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// On a disk that hangs, such as one that is frozen or whose server is away, the plugin can
// promise nothing. DEL says so in time, and cuts the pod off all the same.
func TestDiskHangs(t *testing.T) {
	a := newAway(t, t.TempDir())
	nettest.Hang(t, root.Dir(a.root).State())
	status, out, _ := inside(t, podEnv("DEL"), strings.NewReader(conf(a.root, prevResult(ownLink))), false)
	if status != 1 || failure(t, []byte(out)) != 11 || !strings.Contains(out, "the plugin could not queue the deletion") ||
		!strings.Contains(out, "the disk has not answered in time") {
		t.Errorf("%d %s", status, out)
	}
	if got := a.down(); got != ownLink {
		t.Errorf("down are %q", got)
	}
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
		for k, v := range podEnv("DEL") {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		cmd.Env = append(cmd.Env, "CNI_NETNS="+pod.Ref().Path)
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

// With too few file descriptors to open the namespace, ADD and CHECK say "try again": the
// environment is as it should be.
func TestTooFewFileDescriptorsForADDAndCHECK(t *testing.T) {
	pod := nettest.Pod(t)
	for _, command := range []string{"ADD", "CHECK"} {
		met := false
		for files := 6; files < 12; files++ {
			cmd := exec.Command("sh", "-c", fmt.Sprintf("ulimit -n %d; exec %s", files, filepath.Join(bin, "berth-cni")))
			for k, v := range podEnv(command) {
				cmd.Env = append(cmd.Env, k+"="+v)
			}
			cmd.Env = append(cmd.Env, "CNI_NETNS="+pod.Ref().Path)
			cmd.Stdin = strings.NewReader(conf(t.TempDir(), ""))
			out, err := cmd.Output()
			if cmd.ProcessState.ExitCode() == 2 {
				continue // Go's runtime has ended the program: it found no room for its epoll
			}
			if err == nil || failure(t, out) != 11 {
				t.Errorf("%s with %d: %v %s", command, files, err, out)
			}
			met = met || strings.Contains(string(out), "too many open files")
		}
		if !met {
			t.Errorf("%s has always enough", command)
		}
	}
}
