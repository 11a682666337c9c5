package devices

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/stamp"
)

// mostInfo is the largest device-info file, in bytes. What the specification has needs less than a tenth, and a pod's annotations have
// 256 KiB for all of its networks (nad.Status).
const mostInfo = 16 << 10

// half is what the name of a file ends with that is being written.
const half = ".new"

// Files are the device-info files of one agent instance. There is one for each attachment at most, named after the attachment's incarnation:
// so the file of an attachment that is gone never passes for a later one's, and a file shows whose it is.
type Files struct {
	base, instance string
}

// FilesOf returns the files of an instance.
func FilesOf(d root.Dir, instance string) Files {
	return Files{filepath.Join(string(d), "var/run/k8s.cni.cncf.io/devinfo"), instance}
}

// Path is where a plugin finds or writes what there is to know of an attachment's device (specification, section 4.2). It is the value of
// the capability CNIDeviceInfoFile (section 5.1).
func (f Files) Path(id stamp.ID) string {
	return filepath.Join(f.folder(), stamp.InfoFile(f.instance, id))
}

func (f Files) folder() string { return filepath.Join(f.base, "cni") }

// dpPath is the file in which a device plugin tells of a device (section 4.1).
func (f Files) dpPath(resource, device string) string {
	flat := strings.NewReplacer("/", "-")
	return filepath.Join(f.base, "dp", flat.Replace(resource)+"-"+flat.Replace(device)+"-device.json")
}

// Copy gives an attachment what the device plugin tells of the attachment's device, before the plugins of its network run (section 4.2.1).
// It may be called again. A device plugin that tells nothing is none of its errors: the network's plugins may write the file then. What the
// device plugin tells, is copied as it stands, with keys that are not known here; what Load would refuse is not copied, and an error.
func (f Files) Copy(id stamp.ID, resource, device string) error {
	raw, err := read(f.dpPath(resource, device))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, err = parseInfo(raw)
	}
	if err != nil {
		return fmt.Errorf("reading what its device plugin tells of device %.253q of %.300q: %w", device, resource, err)
	}
	if err := f.write(f.Path(id), raw); err != nil {
		return fmt.Errorf("writing what there is to know of a device for plugins: %w", err)
	}
	return nil
}

// Has reports whether an attachment has a file, or something else in its place.
func (f Files) Has(id stamp.ID) bool {
	_, err := os.Lstat(f.Path(id))
	return err == nil
}

// Missing reports whether an attachment lacks a file that Copy would make. What Copy would refuse is not missing.
func (f Files) Missing(id stamp.ID, resource, device string) bool {
	if f.Has(id) {
		return false
	}
	raw, err := read(f.dpPath(resource, device))
	if err == nil {
		_, err = parseInfo(raw)
	}
	return err == nil
}

// Load returns what there is to know of an attachment's device, from its device plugin or from the network's plugins; nil if nobody has told
// anything. It is what the pod's status shows (section 6).
func (f Files) Load(id stamp.ID) (*nadv1.DeviceInfo, error) {
	raw, err := read(f.Path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var info *nadv1.DeviceInfo
	if err == nil {
		info, err = parseInfo(raw)
	}
	if err != nil {
		return nil, fmt.Errorf("reading device-info file %s: %w", f.Path(id), err)
	}
	return info, nil
}

// Remove removes an attachment's file. One that is not there is none of its errors, whatever the agent may do in the folder.
func (f Files) Remove(id stamp.ID) error {
	remove := func() error { return errors.Join(remove(f.Path(id)+half), remove(f.Path(id))) }
	err := remove()
	if errors.Is(err, fs.ErrPermission) && f.open() == nil {
		err = remove()
	}
	if err != nil {
		return fmt.Errorf("removing a device-info file: %w", err)
	}
	return nil
}

// remove removes a path's file. On a file system that cannot be written to, the kernel refuses before it looks whether there is one.
func remove(path string) error {
	err := os.Remove(path)
	if _, missing := os.Lstat(path); errors.Is(missing, fs.ErrNotExist) {
		return nil
	}
	return err
}

func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// All returns the attachments of this instance that have a file, or a part of one.
func (f Files) All() ([]stamp.ID, error) {
	entries, err := os.ReadDir(f.folder())
	if err := gone(err); err != nil {
		return nil, fmt.Errorf("listing device-info files: %w", err)
	}
	var all []stamp.ID
	for _, e := range entries {
		id, ours := strings.CutPrefix(strings.TrimSuffix(e.Name(), half), stamp.InfoFiles(f.instance))
		if ours && stamp.CheckID(id) == nil {
			all = append(all, stamp.ID(id))
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// open makes the folder of the files, where plugins of other users may read. The folder may be there with no rights for anybody: the
// library that device plugins and Multus use makes it so, and the agent has no CAP_DAC_OVERRIDE to write there regardless.
func (f Files) open() error {
	if err := os.MkdirAll(filepath.Dir(filepath.Dir(f.base)), 0o755); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Dir(f.base), f.base, f.folder()} {
		made := os.Mkdir(dir, 0o755)
		if made != nil && !errors.Is(made, fs.ErrExist) {
			return made
		}
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if made != nil && info.Mode().Perm()&0o700 == 0o700 {
			continue
		}
		if err := os.Chmod(dir, 0o755); err != nil { // Mkdir minds the umask
			return err
		}
	}
	return nil
}

// write writes a file as a whole: a crash leaves no part of it at its path.
func (f Files) write(path string, raw []byte) error {
	if err := f.open(); err != nil {
		return err
	}
	if err := gone(os.Remove(path + half)); err != nil {
		return err
	}
	file, err := os.OpenFile(path+half, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	_, err = file.Write(raw)
	if err := errors.Join(err, file.Chmod(0o444), file.Close()); err != nil { // OpenFile minds the umask
		return err
	}
	return os.Rename(path+half, path)
}

// read reads a file. A name that is too long for a file is one of no file. Other programs write the files: a link to a file that only the agent
// can read would show that file to all who read the pod's status.
func read(path string) ([]byte, error) {
	raw, err := root.ReadBoundedUnlinked(path, mostInfo)
	if errors.Is(err, unix.ENAMETOOLONG) {
		return nil, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return raw, err
}

// parseInfo reads a device-info file (section 3).
func parseInfo(raw []byte) (*nadv1.DeviceInfo, error) {
	info := new(nadv1.DeviceInfo)
	if err := json.Unmarshal(raw, info); err != nil {
		return nil, fmt.Errorf("decoding %.200q: %w", raw, err)
	}
	if info.Type == "" {
		return nil, fmt.Errorf(`type is missing in %.200q; expected a type such as "pci"`, raw)
	}
	return info, nil
}
