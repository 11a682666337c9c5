package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment/verbs"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/mode/modes"
	"github.com/berth-net/berth/internal/nettest"
)

// A pod is gone, and its namespace's path is on a file system that hangs. The pod keeps no other
// pod from being cut off. The agent releases the pod itself: a release does not need the path.
func TestHangingPathKeepsNoOtherPod(t *testing.T) {
	r := start(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "netns")
	gone, other := nettest.Pod(t), nettest.Pod(t)
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, unix.Mount(gone.Ref().Path, path, "", unix.MS_BIND, ""))
	req := request("gone", gone)
	req.Netns.Path = path
	r.add(req)
	r.add(request("other", other))
	must(t, unix.Unmount(path, 0))
	nettest.Hang(t, dir)
	nettest.Run(t, gone, "ip link del eth0")
	first := make(chan error, 1)
	go func() {
		_, _, err := r.Delete(t.Context(), key("gone"), true, now())
		first <- err
	}()
	if _, _, err := r.Delete(t.Context(), key("other"), false, now()); err != nil {
		t.Errorf("DEL of the other one: %v", err)
	}
	if err := <-first; err != nil {
		t.Errorf("DEL: %v", err)
	}
}

// ADD says that a pod's namespace is gone only if that is so. If the agent cannot look just now,
// ADD says "try again".
func TestADDCannotOpenTheNamespace(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	for errno, want := range map[error]uint{
		unix.EMFILE: 11, unix.ENFILE: 11, unix.ENOMEM: 11, ns.ErrHangs: 11, ns.ErrGone: 102, ns.ErrNotNetns: 102,
	} {
		r.opens(func(ns.Ref) (ns.Handle, error) { return nil, fmt.Errorf("opening: %w", errno) })
		_, err := r.tryAdd(request("c", pod))
		wantError(t, err, want, errno.Error())
	}
}

// opens makes a rig's verbs open pods' network namespaces by the function open.
func (r *rig) opens(open func(ns.Ref) (ns.Handle, error)) {
	_, list := modes.List(r.core, r.node, r.ground, r.traffic)
	r.Agent.Verbs = verbs.New(&r.core.Core, r.index, r.drain, r.ground, list, r.networks, open)
}

// openPod is an open namespace of a pod. Its Close takes 1 from `now`, the number of open namespaces.
type openPod struct {
	ns.Handle
	now *int
}

func (p openPod) Close() error { *p.now--; return p.Handle.Close() }

// A verb of ADD opens the pod's network namespace once, whatever becomes of the ADD, and keeps
// it open no longer than the ADD takes. (The link's kind opens it once more, to make the link.)
func TestADDOpensTheNamespaceOnce(t *testing.T) {
	r := start(t)
	times, now := 0, 0
	r.opens(func(ref ns.Ref) (ns.Handle, error) {
		n, err := r.node.OpenNetns(ref)
		if err != nil {
			return nil, err
		}
		times, now = times+1, now+1
		return openPod{n, &now}, nil
	})
	pod := nettest.Pod(t)
	host := request("host", pod)
	host.Netns.Path = "/proc/thread-self/ns/net"
	self := r.node.Here.Ref()
	host.Netns.Dev, host.Netns.Ino, host.Netns.ID = self.Dev, self.Ino, self.ID
	for _, add := range []struct {
		what string
		req  api.AddRequest
		want uint // the error's code
	}{
		{"ADD", request("c", pod), 0},
		{"ADD again", request("c", pod), 0},
		{"ADD of a pod that has the interface", request("d", pod), 101},
		{"ADD of the node's own namespace", host, 102},
	} {
		times = 0
		if _, err := r.tryAdd(add.req); add.want == 0 {
			must(t, err)
		} else {
			wantError(t, err, add.want, "")
		}
		if times != 1 || now != 0 {
			t.Errorf("%s opened the namespace %d times, and %d are open still", add.what, times, now)
		}
	}
}
