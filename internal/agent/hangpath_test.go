package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/attachment/verbs"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/mode/modes"
	"github.com/berth-net/berth/internal/nettest"
)

// A pod that is gone, with its namespace's path on a file system that hangs, keeps no
// other pod from being cut off. It is itself released: the path is not needed.
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
	_, list := modes.List(r.core, r.node, r.ground, r.traffic, r.ports)
	pod := nettest.Pod(t)
	for errno, want := range map[error]uint{
		unix.EMFILE: 11, unix.ENFILE: 11, unix.ENOMEM: 11, ns.ErrHangs: 11, ns.ErrGone: 102, ns.ErrNotNetns: 102,
	} {
		identify := func(ns.Ref) (ns.Ref, error) { return ns.Ref{}, fmt.Errorf("opening: %w", errno) }
		r.Agent.Verbs = verbs.New(&r.core.Core, r.index, r.drain, r.ground, list, identify)
		_, err := r.tryAdd(request("c", pod))
		wantError(t, err, want, errno.Error())
	}
}
