package devices_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/devices"
	"github.com/berth-net/berth/internal/devices/devicestest"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

var (
	must = nettest.Must
	web  = api.Pod{Namespace: "default", Name: "web-0"}
)

// claim returns a container that has devices by a claim.
func claim(name, claim string, cdi ...string) *podresources.ContainerResources {
	r := &podresources.ClaimResource{DriverName: "d", PoolName: "p", DeviceName: "n"}
	for _, c := range cdi {
		r.CdiDevices = append(r.CdiDevices, &podresources.CDIDevice{Name: c})
	}
	return &podresources.ContainerResources{Name: name, DynamicResources: []*podresources.DynamicResource{
		{ClaimName: claim, ClaimNamespace: "default", ClaimResources: []*podresources.ClaimResource{r}},
	}}
}

// A pod's devices are those of its containers, in their order, by Get and, where the kubelet has none, by List; and never another pod's.
func TestDevices(t *testing.T) {
	for what, noGet := range map[string]error{
		"Get": nil, "no Get": status.Error(codes.Unimplemented, "unknown method Get"), "Get is switched off": errors.New("PodResources API Get method disabled"),
	} {
		d := root.Dir(t.TempDir())
		k, l := devicestest.Serve(t, devices.Socket(d)), devices.NewLister(devices.Socket(d))
		k.SwitchOffGet(noGet)
		k.Put("other", "web-0", devicestest.Container("c", "intel.com/a", "wrong"))
		k.Put("default", "web-1", devicestest.Container("c", "intel.com/a", "wrong"))
		k.Put("default", "web-0",
			devicestest.Container("first", "intel.com/a", "0000:3b:02.1", "0000:3b:02.0"), devicestest.Container("none", ""),
			devicestest.Container("last", "intel.com/b", "b"), devicestest.Container("more", "intel.com/a", "a/9"),
			claim("c4", "gpu", "vendor.com/gpu=g1", "vendor.com/gpu=g0"), claim("c5", "gpu", "vendor.com/gpu=g1"))
		k.Put("default", "bare")
		for i := range 500 { // an answer of several frames
			k.Put("default", fmt.Sprintf("pod-%d", i), devicestest.Container("c", "intel.com/a", fmt.Sprint("wrong-", i)))
		}
		want := map[string][]string{"intel.com/a": {"0000:3b:02.1", "0000:3b:02.0", "a/9"}, "intel.com/b": {"b"}, "gpu": {"g1", "g0"}}
		got, err := l.Devices(t.Context(), web)
		must(t, err)
		if !maps.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%s: the pod has %v, want %v", what, got, want)
		}
		if got, err := l.Devices(t.Context(), api.Pod{Namespace: "default", Name: "bare"}); err != nil || len(got) != 0 {
			t.Errorf("%s: a pod without devices has %v, %v", what, got, err)
		}
		if gets, lists := k.Asked(); gets != 2 || (noGet == nil) != (lists == 0) {
			t.Errorf("%s: asked by Get %d times and by List %d times", what, gets, lists)
		}
		if _, err := l.Devices(t.Context(), api.Pod{Namespace: "default", Name: "web"}); !errors.Is(err, devices.ErrAway) || !strings.Contains(err.Error(), "pod default/web: ") {
			t.Errorf("%s: a pod that the kubelet does not know: %v", what, err)
		}
	}
}

// Nothing of one answer is left for the next.
func TestDevicesAnew(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	k, l := devicestest.Serve(t, socket), devices.NewLister(socket)
	if _, err := l.Devices(t.Context(), web); !errors.Is(err, devices.ErrAway) {
		t.Errorf("before the kubelet knows the pod: %v", err)
	}
	k.Put("default", "web-0", devicestest.Container("c", "r", "a"))
	if got, err := l.Devices(t.Context(), web); err != nil || !slices.Equal(got["r"], []string{"a"}) {
		t.Errorf("%v, %v", got, err)
	}
}

// A kubelet that was asked too often is asked again.
func TestTooOften(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	k, l := devicestest.Serve(t, socket), devices.NewLister(socket)
	k.Put("default", "web-0", devicestest.Container("c", "r", "a"))
	k.Refuse(3)
	if got, err := l.Devices(t.Context(), web); err != nil || !slices.Equal(got["r"], []string{"a"}) {
		t.Errorf("%v, %v", got, err)
	}
	k.Refuse(1e6)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := l.Devices(short, web); !errors.Is(err, devices.ErrAway) || !strings.Contains(err.Error(), "rejected by rate limit") {
		t.Errorf("a kubelet that refuses for ever: %v", err)
	}
}

// A kubelet that is away, hangs, or speaks something else is an error that says so, and leaves nothing running.
func TestDevicesFails(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600), unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	hangs := devicestest.Serve(t, filepath.Join(dir, "hangs"))
	hangs.Hang()
	faulty := devicestest.Serve(t, filepath.Join(dir, "faulty"))
	faulty.Put("default", "web-0", devicestest.Container("c", "r", ""))
	cdi := devicestest.Serve(t, filepath.Join(dir, "cdi"))
	cdi.Put("default", "web-0", claim("c", "r", "nonsense"))
	large := devicestest.Serve(t, filepath.Join(dir, "large"))
	large.Put("default", "web-0", devicestest.Container("c", "r", strings.Repeat("x", 16<<20)))
	denies := devicestest.Serve(t, filepath.Join(dir, "denies"))
	denies.SwitchOffGet(status.Error(codes.PermissionDenied, "not you: 100%"))
	ends := devicestest.Serve(t, filepath.Join(dir, "ends"))
	ends.SwitchOffGet(status.Error(codes.Unavailable, "it ends"))
	cases := []struct {
		what, socket string
		away         bool
		want         string
	}{
		{"no socket", dir + "/none", true, "no such file"},
		{"a file", dir + "/file", true, "connection refused"},
		{"a FIFO", dir + "/fifo", true, "connection refused"},
		{"a kubelet that has ended", speaks(t, "!"), true, "asking the kubelet at "},
		{"a kubelet that hangs", dir + "/hangs", true, "deadline_exceeded"},
		{"a server that hangs before HTTP/2", speaks(t, ""), true, "deadline_exceeded"},
		{"garbage", speaks(t, "\x00garbage\r\n\r\n"), true, "asking the kubelet at "},
		{"HTTP/1", speaks(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), true, "asking the kubelet at "},
		{"a device without an ID", dir + "/faulty", false, `a device of "r" without an ID`},
		{"a CDI name without an ID", dir + "/cdi", false, `a CDI device "nonsense"; expected VENDOR/CLASS=ID`},
		{"an answer that is too large", dir + "/large", false, "larger than"},
		{"a kubelet that ends", dir + "/ends", true, "it ends"},
		{"a kubelet that refuses", dir + "/denies", false, "not you: 100%"},
	}
	ended := nettest.Goroutines(t)
	for _, c := range cases {
		l := devices.NewLister(c.socket)
		if strings.Contains(c.what, "hangs") {
			l.SetWithin(100 * time.Millisecond)
		}
		got, err := l.Devices(t.Context(), web)
		if err == nil || got != nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, devices.ErrAway) != c.away {
			t.Errorf("%s: %v, %v (away: %t); want %q", c.what, got, err, errors.Is(err, devices.ErrAway), c.want)
		}
	}
	ended()
}

// A kubelet that hangs keeps nobody who goes, or whose time is over.
func TestCallerGoes(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	k, l := devicestest.Serve(t, socket), devices.NewLister(socket)
	k.Hang()
	gone, cancel := context.WithCancel(t.Context())
	answer := make(chan error)
	go func() {
		_, err := l.Devices(gone, web)
		answer <- err
	}()
	nettest.Eventually(t, "the call", func() bool { gets, _ := k.Asked(); return gets == 1 })
	cancel()
	if err := <-answer; !errors.Is(err, context.Canceled) || errors.Is(err, devices.ErrAway) {
		t.Errorf("a caller who goes: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := l.Devices(short, web); !errors.Is(err, devices.ErrAway) {
		t.Errorf("a caller whose time is over: %v", err)
	}
}

// speaks serves a text to everybody and then hangs or, if the text is "!", hangs up.
func speaks(t *testing.T, text string) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(c).ReadByte()
			if text == "!" {
				_ = c.Close()
				continue
			}
			t.Cleanup(func() { _ = c.Close() })
			_, _ = c.Write([]byte(text))
		}
	}()
	return socket
}
