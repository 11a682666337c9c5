package deviceinfo_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/berth-net/berth/internal/attachment/status"
	"github.com/berth-net/berth/internal/devices"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/deviceinfo"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

const pci = `{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:3b:02.1"}}`

// world is a node's folder of device-info files, and what an agent says of them.
type world struct {
	*deviceinfo.Infos
	t    testing.TB
	base string
	of   func(hold.Owner) *nadv1.DeviceInfo
	said []string
}

func newWorld(t testing.TB) *world {
	dir := t.TempDir()
	w := &world{t: t, base: filepath.Join(dir, "var/run/k8s.cni.cncf.io/devinfo")}
	nettest.Must(t, os.MkdirAll(filepath.Join(w.base, "dp"), 0o755))
	files := devices.FilesOf(root.Dir(dir), "abcdefghij")
	w.Infos = deviceinfo.New(deviceinfo.Options{Files: files, Lacks: func(err error) { w.said = append(w.said, err.Error()) }})
	w.of = status.Device(w.Read, files.Load)
	return w
}

// tells has the device plugin of a resource v/r tell of a device.
func (w *world) tells(device, text string) {
	w.t.Helper()
	nettest.Must(w.t, os.WriteFile(w.dp(device), []byte(text), 0o644))
}

func (w *world) dp(device string) string {
	return filepath.Join(w.base, "dp", "v-r-"+device+"-device.json")
}

// left lists the files of attachments.
func (w *world) left() string {
	all, err := filepath.Glob(filepath.Join(w.base, "cni", "*"))
	nettest.Must(w.t, err)
	return strings.Join(all, "\n")
}

func (w *world) verify(h hold.Hold) error {
	return w.Kind().Verify(w.t.Context(), nil, []hold.Hold{h})[0]
}

func holdOf(device string) (hold.Hold, hold.Owner) {
	id := hold.NewID()
	h := hold.Hold{Owner: id, Spec: &deviceinfo.Spec{ID: id, Resource: "v/r", Device: device}}
	return h, hold.Owner{ID: id, Holds: []hold.Hold{h}}
}

func TestKind(t *testing.T) {
	w := newWorld(t)
	kindtest.Run(t, kindtest.Kind{
		Kind: w.Kind(),
		Spec: func(_ testing.TB, owner hold.ID) hold.Spec {
			w.tells(string(owner), pci)
			return &deviceinfo.Spec{ID: owner, Resource: "v/r", Device: string(owner)}
		},
		Example:     &deviceinfo.Spec{ID: "abcdefghij", Resource: "intel.com/net_a", Device: "0000:3b:02.1"},
		Snapshot:    w.left,
		Undisguised: "what is in the file is others' to write",
	})
}

// The file has what the network's plugins have made of it, whoever looks for it; without a file there is nothing to know.
func TestOf(t *testing.T) {
	w := newWorld(t)
	w.tells("d", pci)
	h, o := holdOf("d")
	if info := w.of(o); info != nil {
		t.Errorf("before: %+v", info)
	}
	nettest.Must(t, w.Kind().Acquire(t.Context(), h))
	if info := w.of(o); info == nil || info.Pci == nil || info.Pci.PciAddress != "0000:3b:02.1" {
		t.Errorf("the device plugin's: %+v", info)
	}
	nettest.Must(t, os.Remove(w.Files.Path(o.ID)))
	nettest.Must(t, os.WriteFile(w.Files.Path(o.ID), []byte(`{"type":"memif","memif":{"role":"master","path":"/m","mode":"ip"}}`), 0o644))
	nettest.Must(t, w.Kind().Acquire(t.Context(), h), w.verify(h)) // a repair leaves it
	if info := w.of(o); info == nil || info.Memif == nil {
		t.Errorf("the plugin's: %+v", info)
	}
	if info := w.of(hold.Owner{ID: o.ID}); info != nil {
		t.Errorf("an owner without the hold: %+v", info)
	}
	nettest.Must(t, w.Kind().Release(t.Context(), []hold.Hold{h})[0])
	if left := w.left(); left != "" || len(w.said) != 0 {
		t.Errorf("left is %q, said is %q", left, w.said)
	}
}

// What cannot be had keeps no pod: it is said once, and no sweep tries again and again.
func TestOptional(t *testing.T) {
	w := newWorld(t)
	none, _ := holdOf("none")
	nettest.Must(t, w.Kind().Acquire(t.Context(), none), w.verify(none), w.Kind().Release(t.Context(), []hold.Hold{none})[0])
	nettest.Must(t, os.WriteFile(filepath.Join(w.base, "dp", "-d-device.json"), []byte(pci), 0o644))
	given := hold.Hold{Owner: hold.NewID(), Spec: &deviceinfo.Spec{ID: hold.NewID(), Device: "d"}} // by no device plugin
	nettest.Must(t, w.Kind().Acquire(t.Context(), given), w.verify(given))
	if w.left() != "" || len(w.said) != 0 {
		t.Errorf("left is %q, said is %q", w.left(), w.said)
	}

	nonsense, _ := holdOf("nonsense")
	w.tells("nonsense", "{}")
	for range 2 {
		nettest.Must(t, w.Kind().Acquire(t.Context(), nonsense), w.verify(nonsense))
	}
	w.wantSaid("type is missing")
	nettest.Must(t, w.Kind().Release(t.Context(), []hold.Hold{nonsense})[0], w.Kind().Acquire(t.Context(), nonsense))
	w.wantSaid("type is missing") // what is released is forgotten

	nettest.Must(t, os.WriteFile(filepath.Join(w.base, "cni"), nil, 0o644)) // no folder can be made
	h, o := holdOf("d")
	w.tells("d", pci)
	if err := w.verify(h); !errors.Is(err, hold.ErrGone) {
		t.Errorf("before: %v", err)
	}
	for range 2 {
		nettest.Must(t, w.Kind().Acquire(t.Context(), h), w.verify(h))
	}
	w.wantSaid("not a directory")
	if info := w.of(o); info != nil {
		t.Errorf("without a file: %+v", info)
	}
}

// wantSaid takes what was said since it was last asked, which is one word.
func (w *world) wantSaid(word string) {
	w.t.Helper()
	if len(w.said) != 1 || !strings.Contains(w.said[0], word) {
		w.t.Errorf("said is %q, want one with %q", w.said, word)
	}
	w.said = nil
}

// A link in the place of a file shows nothing of the file that it leads to, and what is released is the link.
func TestLinks(t *testing.T) {
	w := newWorld(t)
	secret := filepath.Join(t.TempDir(), "secret")
	nettest.Must(t, os.WriteFile(secret, []byte(pci), 0o600))
	h, o := holdOf("d")
	nettest.Must(t, os.Symlink(secret, w.dp("d")), w.Kind().Acquire(t.Context(), h))
	if w.left() != "" {
		t.Errorf("the copy of a link: %q", w.left())
	}
	w.wantSaid("not a regular file")
	nettest.Must(t, os.MkdirAll(filepath.Join(w.base, "cni"), 0o755), os.Symlink(secret, w.Files.Path(o.ID)))
	for range 2 {
		if info := w.of(o); info != nil {
			t.Errorf("the status shows %+v", info)
		}
	}
	w.wantSaid("not a regular file")
	nettest.Must(t, w.Kind().Release(t.Context(), []hold.Hold{h})[0])
	if raw, err := os.ReadFile(secret); err != nil || string(raw) != pci || w.left() != "" {
		t.Errorf("the file behind the link: %q, %v; left is %q", raw, err, w.left())
	}
}
