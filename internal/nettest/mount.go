package nettest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Mount mounts a tmpfs on a folder, until the test ends. options are mount(8)'s, such as "size=16m".
func Mount(t testing.TB, folder, options string) {
	t.Helper()
	Must(t, unix.Mount("tmpfs", folder, "tmpfs", 0, options))
	unmountLater(t, folder)
}

// MountExt4 is `mkfs.ext4 FILE; mount -o loop FILE FOLDER`, until the test ends. It skips the test where
// no loop device is to be had.
func MountExt4(t testing.TB, folder string) {
	t.Helper()
	mount, file := Program(t, "mount"), filepath.Join(t.TempDir(), "disk")
	Must(t, os.WriteFile(file, nil, 0o600), os.Truncate(file, 16<<20))
	Run(t, nil, "mkfs.ext4 -q -F "+file)
	if out, err := exec.Command(mount, "-o", "loop", file, folder).CombinedOutput(); err != nil {
		t.Skipf("no file system on a loop device to be had: %v\n%s", err, out)
	}
	unmountLater(t, folder)
}

func unmountLater(t testing.TB, folder string) {
	t.Cleanup(func() {
		if err := unix.Unmount(folder, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// Fill takes all blocks that are left on a folder's disk, by the file "filler".
func Fill(t testing.TB, folder string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(folder, "filler"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	Must(t, err)
	defer f.Close()
	for _, size := range []int{1 << 16, 1} { // the rest of the last block, too
		for page := make([]byte, size); err == nil; {
			_, err = f.Write(page)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		err = f.Sync()
	}
}
