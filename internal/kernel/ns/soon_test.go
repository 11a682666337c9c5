package ns_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// OpenSoon gives up on a path whose file system hangs. From the second time on it gives up at once.
// When the file system answers again, OpenSoon opens the path as any other.
func TestOpenHangs(t *testing.T) {
	dir := t.TempDir()
	heal := nettest.Hang(t, dir)
	ref := ns.Ref{Path: filepath.Join(dir, "netns"), Ino: 1}
	for range 100 {
		begun := time.Now()
		if n, err := ref.Open(); !errors.Is(err, ns.ErrHangs) {
			t.Errorf("it opens %v, %v, after %v", n, err, time.Since(begun))
		}
	}
	heal()
	nettest.Eventually(t, "the path to be one like others", func() bool {
		_, err := ref.Open()
		return !errors.Is(err, ns.ErrHangs)
	})
}

// A file system that hangs may be mounted over a folder of namespaces itself, or over a
// process's folder in /proc.
func TestOpenBelowHangs(t *testing.T) {
	pod := nettest.Pod(t)
	process := fmt.Sprintf("/proc/%d", os.Getpid())
	for path, folder := range map[string]string{
		pod.Ref().Path:        filepath.Dir(pod.Ref().Path),
		process + "/ns/net":   process,
		"/var/run/netns/none": "/run/netns",
	} {
		t.Run(path, func(t *testing.T) {
			heal := nettest.Hang(t, folder)
			opened := make(chan error)
			go func() {
				_, err := ns.OpenSoon(path)
				opened <- err
			}()
			select {
			case err := <-opened:
				if !errors.Is(err, ns.ErrHangs) {
					t.Error(err)
				}
			case <-time.After(5 * time.Second):
				t.Error("it waits")
				heal()
				<-opened
			}
		})
	}
}

// If nothing hangs, OpenSoon opens the same paths as Open, and returns the same errors.
func TestOpenSoonIsOpen(t *testing.T) {
	pod := nettest.Pod(t)
	folder := filepath.Dir(pod.Ref().Path)
	link, file := filepath.Join(folder, "a-link"), filepath.Join(folder, "a-file")
	must(t, errors.Join(os.Symlink(pod.Ref().Path, link), os.WriteFile(file, nil, 0o600)))
	t.Cleanup(func() { _ = errors.Join(os.Remove(link), os.Remove(file)) })
	for _, path := range []string{
		pod.Ref().Path, link, file, filepath.Join(folder, "none"), folder, "/var" + pod.Ref().Path,
		fmt.Sprintf("/proc/%d/ns/net", os.Getpid()), "/proc/self/ns/net", "/proc/4194305/ns/net", "/proc/x/ns/net", "/proc//ns/net",
		"/proc/../ns/net", "/run/netns/..", "/run/netns/", "",
	} {
		soon, soonErr := ns.OpenSoon(path)
		now, err := ns.Open(path)
		if fmt.Sprint(soonErr) != fmt.Sprint(err) || err == nil && soon.Ref() != now.Ref() {
			t.Errorf("%q: OpenSoon is %v, %v; Open is %v, %v", path, soon, soonErr, now, err)
		}
		for _, n := range []*ns.Netns{soon, now} {
			if n != nil {
				n.Close()
			}
		}
	}
}
