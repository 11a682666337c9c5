package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/test/programs"
)

// machine describes the machine on which the figures were measured.
func machine(dir string) string {
	var name unix.Utsname
	kernel := "unknown"
	if unix.Uname(&name) == nil {
		kernel = unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:])
	}
	who := "root"
	if !programs.InitialUser() {
		who = "a plain user, in a user namespace"
	}
	return fmt.Sprintf("%s; %d cores of %s, with a load of %s before; %s of memory; files on %s, %s; %s; as %s; %s",
		kernel, runtime.NumCPU(), cpuModel(), loadAverage(), memorySize(), filesystem(dir), syncCost(dir),
		runtime.Version(), who, time.Now().UTC().Format(time.DateOnly))
}

// loadAverage is how many threads of all programs ran or waited for a processor or a disk, on average in the last minute.
func loadAverage() string {
	raw, _ := os.ReadFile("/proc/loadavg")
	minute, _, _ := strings.Cut(string(raw), " ")
	return cmp.Or(minute, "unknown size")
}

// cpuModel is the first "model name" of /proc/cpuinfo.
func cpuModel() string {
	if v := field("/proc/cpuinfo", "model name"); v != "" {
		return v
	}
	return runtime.GOARCH
}

// memorySize is the machine's memory in GB.
func memorySize() string {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return "unknown size"
	}
	return fmt.Sprintf("%.0f GB", float64(info.Totalram)*float64(info.Unit)/1e9)
}

// field returns the value of the first "key: value" line of a file of /proc.
func field(file, key string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(raw)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// syncCost measures how long it takes to append 4 KiB to a file in dir and to have the bytes on
// disk: every durable ADD and DEL waits for such an append.
func syncCost(dir string) string {
	f, err := os.CreateTemp(dir, "sync-")
	if err != nil {
		return err.Error()
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var took []time.Duration
	for range 100 {
		begun := time.Now()
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return err.Error()
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return err.Error()
		}
		took = append(took, time.Since(begun))
	}
	return fmt.Sprintf("where append + fdatasync takes %s ms (p99 %s)", num(percentile(took, 50)), num(percentile(took, 99)))
}

// filesystem names the file system of dir, which decides what fsync costs.
func filesystem(dir string) string {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil {
		return "an unknown file system"
	}
	switch fs.Type {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs (where fsync costs nothing)"
	}
	return fmt.Sprintf("file system %#x", fs.Type)
}
