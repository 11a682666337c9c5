package devices_test

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/devices"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/stamp"
)

const (
	instance = "abcdefghij"
	id       = stamp.ID("klmnopqrst")
	pci      = `{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:3b:02.1","later":[1]}}`
)

// filesOf returns an agent's files, and the folders of device plugins and of CNI plugins.
func filesOf(t *testing.T) (f devices.Files, dp, cni string) {
	t.Helper()
	dir := t.TempDir()
	base := filepath.Join(dir, "var/run/k8s.cni.cncf.io/devinfo")
	dp, cni = filepath.Join(base, "dp"), filepath.Join(base, "cni")
	must(t, os.MkdirAll(dp, 0o755))
	return devices.FilesOf(root.Dir(dir), instance), dp, cni
}

func put(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
}

// What a device plugin tells of a device is what the network's plugins and the pod's status get, until it is removed. The folder and the
// file can be read by everybody, whatever the agent's umask is.
func TestCopy(t *testing.T) {
	f, dp, cni := filesOf(t)
	defer unix.Umask(unix.Umask(0o077))
	put(t, dp+"/intel.com-net_a-vendor-0000:3b:02.1-device.json", pci)
	if info, err := f.Load(id); info != nil || err != nil {
		t.Errorf("before the copy: %v, %v", info, err)
	}
	for range 2 { // a repair copies again
		must(t, f.Copy(id, "intel.com/net_a", "vendor/0000:3b:02.1"))
		raw, err := os.ReadFile(f.Path(id))
		must(t, err)
		if string(raw) != pci {
			t.Errorf("the copy is %s", raw)
		}
	}
	info, err := f.Load(id)
	must(t, err)
	if info.Type != "pci" || info.Pci == nil || info.Pci.PciAddress != "0000:3b:02.1" {
		t.Errorf("the status shows %+v", info)
	}
	for path, want := range map[string]os.FileMode{filepath.Dir(cni): 0o755, cni: 0o755, f.Path(id): 0o444} {
		if seen, err := os.Stat(path); err != nil || seen.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, seen.Mode(), err, want)
		}
	}
	for range 2 {
		must(t, f.Remove(id))
		left, err := os.ReadDir(cni)
		must(t, err)
		if len(left) != 0 {
			t.Errorf("left is %v", left)
		}
	}
	if _, err := os.Stat(dp + "/intel.com-net_a-vendor-0000:3b:02.1-device.json"); err != nil {
		t.Errorf("the device plugin's file: %v", err)
	}
}

// A device plugin that tells nothing leaves the file to the network's plugins.
func TestPluginTells(t *testing.T) {
	f, _, cni := filesOf(t)
	must(t, f.Copy(id, "intel.com/net_a", "0000:3b:02.1"), f.Copy(id, strings.Repeat("r", 300), "0"))
	if _, err := os.Stat(cni); !os.IsNotExist(err) {
		t.Errorf("a folder for nothing: %v", err)
	}
	must(t, f.Remove(id))
	put(t, f.Path(id), `{"type":"memif","version":"1.1.0","memif":{"role":"slave","path":"/x","mode":"ip"}}`)
	info, err := f.Load(id)
	must(t, err)
	if info.Type != "memif" || info.Memif == nil || info.Memif.Role != "slave" {
		t.Errorf("the status shows %+v", info)
	}
	must(t, f.Remove(id))
}

// What is no device-info file is an error that does not wait, and changes nothing.
func TestNonsense(t *testing.T) {
	f, dp, cni := filesOf(t)
	at := filepath.Join(dp, "r-d-device.json")
	whole := filepath.Join(t.TempDir(), "whole")
	put(t, whole, pci)
	put(t, f.Path(id), "{}")
	must(t, os.Remove(f.Path(id)))
	for _, c := range []struct {
		what string
		make func(path string) error
		want string
	}{
		{"a FIFO", func(path string) error { return unix.Mkfifo(path, 0o644) }, "not a regular file"},
		{"a folder", func(path string) error { return os.Mkdir(path, 0o755) }, "not a regular file"},
		{"a link to a file", func(path string) error { return os.Symlink(whole, path) }, "not a regular file"},
		{"a link to a device", func(path string) error { return os.Symlink("/dev/zero", path) }, "not a regular file"},
		{"too much", text(`{"type":"` + strings.Repeat("x", 16<<10) + `"}`), "more than 16384 bytes"},
		{"nothing", text(""), "unexpected end of JSON"},
		{"no JSON", text("\x00\xff"), "invalid character"},
		{"a list", text("[]"), "cannot unmarshal array"},
		{"null", text("null"), "type is missing"},
		{"no type", text(`{"version":"1.1.0"}`), "type is missing"},
		{"a wrong type", text(`{"type":1}`), "cannot unmarshal number"},
	} {
		must(t, c.make(at), c.make(f.Path(id)))
		err := f.Copy(id, "r", "d")
		if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 1000 {
			t.Errorf("copying %s: %.1000v", c.what, err)
		}
		if info, err := f.Load(id); info != nil || err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 1000 {
			t.Errorf("loading %s: %v, %.1000v", c.what, info, err)
		}
		must(t, f.Remove(id), os.Remove(at))
		if left, err := os.ReadDir(cni); len(left) != 0 || err != nil {
			t.Errorf("%s: left is %v, %v", c.what, left, err)
		}
	}
}

// Of a file that is too large, no more is read than a file may have.
func TestLarge(t *testing.T) {
	f, _, _ := filesOf(t)
	put(t, f.Path(id), "")
	must(t, os.Truncate(f.Path(id), 1<<30))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	info, err := f.Load(id)
	runtime.ReadMemStats(&after)
	if info != nil || err == nil || after.TotalAlloc-before.TotalAlloc > 1<<20 {
		t.Errorf("%v, %v; %d bytes were read or more", info, err, after.TotalAlloc-before.TotalAlloc)
	}
}

func text(s string) func(string) error {
	return func(path string) error { return os.WriteFile(path, []byte(s), 0o644) }
}

// The files of this instance are found, those half written too, and no others.
func TestAll(t *testing.T) {
	f, _, _ := filesOf(t)
	if all, err := f.All(); len(all) != 0 || err != nil {
		t.Errorf("without a folder: %v, %v", all, err)
	}
	half, other := stamp.ID("2222222222"), stamp.ID("3333333333")
	for _, name := range []string{
		f.Path(id), f.Path(id) + ".new", f.Path(half) + ".new", f.Path(other) + "x", f.Path("UPPER22222"), f.Path(""),
		filepath.Join(filepath.Dir(f.Path(id)), stamp.InfoFile("zzzzzzzzzz", other)),
		filepath.Join(filepath.Dir(f.Path(id)), "default-net-a-c0ffee_net1"), // as Multus names them
	} {
		put(t, name, "{}")
	}
	all, err := f.All()
	must(t, err)
	if !slices.Equal(all, []stamp.ID{half, id}) {
		t.Errorf("found %q", all)
	}
	for _, id := range all {
		must(t, f.Remove(id))
	}
	if all, err = f.All(); len(all) != 0 || err != nil {
		t.Errorf("after their removal: %v, %v", all, err)
	}
	if left, err := os.ReadDir(filepath.Dir(f.Path(id))); len(left) != 5 || err != nil {
		t.Errorf("others' files that are left: %v, %v", left, err)
	}
}

// A part of a file, which a killed agent has left, and a folder that nobody may write, which the plugins' library has made, are in no way.
func TestLeftovers(t *testing.T) {
	f, dp, cni := filesOf(t)
	put(t, dp+"/r-d-device.json", pci)
	put(t, f.Path(id)+".new", `{"type`)
	must(t, os.Chmod(f.Path(id)+".new", 0o444), os.Chmod(cni, 0))
	asAgent(t, func() {
		must(t, f.Copy(id, "r", "d"))
		if info, err := f.Load(id); err != nil || info.Pci == nil {
			t.Errorf("%+v, %v", info, err)
		}
	})
	if seen, err := os.Stat(cni); err != nil || seen.Mode().Perm() != 0o755 {
		t.Errorf("the folder: %v, %v", seen.Mode(), err)
	}
	must(t, os.Chmod(cni, 0))
	asAgent(t, func() { must(t, f.Remove(id)) })
	must(t, os.Chmod(cni, 0o755))
	if left, err := os.ReadDir(cni); len(left) != 0 || err != nil {
		t.Errorf("left is %v, %v", left, err)
	}
}

// asAgent does something with an agent's rights, which may read all files and write its user's own (deploy/berthd.service).
func asAgent(t *testing.T, do func()) {
	t.Helper()
	runtime.LockOSThread() // rights are a thread's
	defer runtime.UnlockOSThread()
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all [2]unix.CapUserData
	must(t, unix.Capget(header, &all[0]))
	few := all
	few[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER
	must(t, unix.Capset(header, &few[0]))
	defer func() { must(t, unix.Capset(header, &all[0])) }()
	do()
}

// A full file system is an error, and leaves no part of a file that All does not find.
func TestNoRoom(t *testing.T) {
	nettest.Need(t)
	dir := t.TempDir()
	nettest.Mount(t, dir, "size=64k")
	f := devices.FilesOf(root.Dir(dir), instance)
	put(t, dir+"/var/run/k8s.cni.cncf.io/devinfo/dp/r-d-device.json", pci)
	nettest.Fill(t, dir)
	if err := f.Copy(id, "r", "d"); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("%v", err)
	}
	if info, err := f.Load(id); info != nil || err != nil {
		t.Errorf("a part of it counts: %v, %v", info, err)
	}
	must(t, f.Remove(id))
	if all, err := f.All(); len(all) != 0 || err != nil {
		t.Errorf("%v, %v", all, err)
	}
}

// On a file system that nobody may write to, what is not there is no error, and what is there stays one.
func TestReadOnly(t *testing.T) {
	nettest.Need(t)
	dir := t.TempDir()
	nettest.Mount(t, dir, "size=64k")
	f := devices.FilesOf(root.Dir(dir), instance)
	put(t, f.Path(id), pci)
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""), f.Remove("2222222222"))
	if err := f.Remove(id); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a file that stays: %v", err)
	}
	if !f.Has(id) || f.Has("2222222222") {
		t.Error("has other files than there are")
	}
}

// What Copy would make is missing until it is made; what Copy would refuse is not missing.
func TestMissing(t *testing.T) {
	f, dp, _ := filesOf(t)
	missing := func(want bool) {
		t.Helper()
		if got := f.Missing(id, "r", "d"); got != want {
			t.Errorf("missing is %t", got)
		}
	}
	missing(false)
	put(t, dp+"/r-d-device.json", "{}")
	missing(false)
	put(t, dp+"/r-d-device.json", pci)
	missing(true)
	must(t, f.Copy(id, "r", "d"))
	missing(false)
	must(t, f.Remove(id))
	missing(true)
}
