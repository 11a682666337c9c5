package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Magic numbers of file systems that include/uapi/linux/magic.h lacks, or x/sys/unix.
const (
	cephMagic = 0x00c36400
	cifsMagic = 0xff534d42
	smb2Magic = 0xfe534d42
)

// fileSystems names the file systems that are wrong for some folder of Berth's.
var fileSystems = map[int64]struct {
	name            string
	memory, network bool
	container       bool // the file system ends with its container
}{
	unix.TMPFS_MAGIC:           {name: "tmpfs", memory: true},
	unix.RAMFS_MAGIC:           {name: "ramfs", memory: true},
	unix.NFS_SUPER_MAGIC:       {name: "nfs", network: true},
	unix.SMB_SUPER_MAGIC:       {name: "smb", network: true},
	cifsMagic:                  {name: "cifs", network: true},
	smb2Magic:                  {name: "smb", network: true},
	cephMagic:                  {name: "ceph", network: true},
	unix.V9FS_MAGIC:            {name: "9p", network: true},
	unix.AFS_SUPER_MAGIC:       {name: "afs", network: true},
	unix.FUSE_SUPER_MAGIC:      {name: "fuse", network: true},
	unix.OVERLAYFS_SUPER_MAGIC: {name: "overlay", container: true},
}

// statfs asks for the file system of a folder or, if there is no such folder, of the nearest folder
// above it, which statfs returns as dir.
func statfs(folder string) (dir string, fs unix.Statfs_t, err error) {
	if dir, err = nearest(folder); err != nil {
		return "", fs, err
	}
	if err := unix.Statfs(dir, &fs); err != nil {
		return "", fs, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return dir, fs, nil
}

func readOnly(fs unix.Statfs_t) bool { return fs.Flags&unix.ST_RDONLY != 0 }

// lookRun looks at where the run folder is, or will be.
func lookRun(_ context.Context, n *Node) Finding {
	dir, fs, err := statfs(n.Root.Run())
	if err != nil {
		return unknown(err)
	}
	if readOnly(fs) {
		return Finding{Bad, dir + " is read-only", "mount -o remount,rw " + dir}
	}
	if !fileSystems[int64(fs.Type)].memory {
		return Finding{Warn, fmt.Sprintf("%s is no tmpfs", dir), "mount a tmpfs on /run at boot: tmpfs /run tmpfs mode=0755,nosuid,nodev 0 0 in /etc/fstab"}
	}
	return ok("%s is a %s", dir, fileSystems[int64(fs.Type)].name)
}

// lookState looks at where the state folder is, or will be.
func lookState(_ context.Context, n *Node) Finding {
	dir, fs, err := statfs(n.Root.State())
	if err != nil {
		return unknown(err)
	}
	return judgeState(dir, int64(fs.Type), readOnly(fs))
}

func judgeState(dir string, typ int64, readOnly bool) Finding {
	sort := fileSystems[typ]
	move := "mount a local disk on " + dir
	switch {
	case readOnly:
		return Finding{Bad, dir + " is read-only", "see why (dmesg | tail), then: mount -o remount,rw " + dir}
	case sort.memory:
		return Finding{Bad, fmt.Sprintf("%s is a %s: a reboot empties it", dir, sort.name), move}
	case sort.network:
		return Finding{Warn, fmt.Sprintf("%s is a %s: a server has to answer", dir, sort.name), move}
	case sort.container:
		return Finding{Warn, fmt.Sprintf("%s is an %s: it goes with its container", dir, sort.name), "give the container " + dir + " of the node (hostPath)"}
	}
	return ok("%s is on a local disk", dir)
}

// lookMounts looks whether the agent sees what runtimes mount for pods.
func lookMounts(_ context.Context, n *Node) Finding {
	folder, err := os.Stat(n.host("/run/netns"))
	if other, _ := os.Stat(n.host("/var/run/netns")); err == nil && !os.SameFile(folder, other) {
		return Finding{Bad, "/var/run/netns, by which containerd names pods' network namespaces, does not lead to /run/netns",
			"make /var/run a symlink to /run, in the agent's image, too"}
	}
	a := n.agent()
	if a.pid == 0 {
		a.pid = os.Getpid() // an agent that is started from here has the same mounts
	}
	its, err := os.Readlink(a.proc("ns/mnt"))
	if err != nil {
		return unknown(err)
	}
	hosts, err := os.Readlink("/proc/1/ns/mnt")
	if err != nil {
		return unknown(err)
	}
	if its == hosts {
		return ok("the mounts are those of the node's first process")
	}
	raw, err := os.ReadFile(a.proc("mountinfo"))
	if err != nil {
		return unknown(err)
	}
	return judgeMounts(string(raw))
}

// judgeMounts reads the mounts of an agent that has a mount namespace of its own.
func judgeMounts(mountinfo string) Finding {
	at, spreads := "", false
	for line := range strings.Lines(mountinfo) {
		// ID parent major:minor root point options [optional...] - type source options
		before, _, _ := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if len(fields) < 6 || !strings.HasPrefix("/run/netns/", strings.TrimSuffix(fields[4], "/")+"/") {
			continue
		}
		// A later mount hides an earlier one.
		optional := strings.Join(fields[6:], " ")
		at, spreads = fields[4], strings.Contains(optional, "shared:") || strings.Contains(optional, "master:")
	}
	if !spreads {
		return Finding{Bad, "the agent has mounts of its own, and " + at + " does not show it what is mounted later",
			"run the agent without a mount namespace (see deploy/berthd.service), or give its container /run/netns with mountPropagation: HostToContainer"}
	}
	return Finding{Warn, "the agent has mounts of its own; " + at + " shows it what is mounted later",
		"run the agent without a mount namespace (see deploy/berthd.service)"}
}
