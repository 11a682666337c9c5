package agent

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

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
