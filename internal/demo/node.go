package demo

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// node is the node that the story is about: the inner process's namespaces.
type node struct {
	bin  string // folder of the programs
	root string // the agent's --root
	dir  string // everything else of the demo: pods' namespaces, libcni's cache
}

// newNode prepares the fresh namespaces: mounts, folders, and lo.
func newNode(bin string) (*node, error) {
	if err := guard(); err != nil {
		return nil, fmt.Errorf("the demo does not run in namespaces of its own, and so it touches nothing: %w; unset %s", err, envInside)
	}
	// mount --make-rslave /: mounts that are made here are not seen outside, and mounts that
	// are removed outside are not kept here.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return nil, fmt.Errorf("keeping mounts apart: %w", err)
	}
	base, err := mountTmpfs(bin)
	if err != nil {
		return nil, err
	}
	n := &node{bin: bin, root: filepath.Join(base, "root"), dir: filepath.Join(base, "demo")}
	for _, dir := range []string{n.root, n.dir, n.netnsDir(), n.cacheDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("making the demo's folders: %w", err)
		}
	}
	lo, err := netlink.LinkByName("lo") // ip link set lo up
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return nil, fmt.Errorf("setting lo up: %w", err)
	}
	return n, nil
}

func (n *node) netnsDir() string { return filepath.Join(n.dir, "netns") }
func (n *node) cacheDir() string { return filepath.Join(n.dir, "cni-cache") }

// guard refuses to work anywhere but in fresh namespaces. It compares them with the
// machine's, whose files the outer process has passed on, and closes the files.
func guard() error {
	for i, name := range apart {
		fd := 3 + i
		var fs unix.Statfs_t
		var left, here unix.Stat_t
		if err := unix.Fstatfs(fd, &fs); err != nil {
			return fmt.Errorf("looking at file %d: %w", fd, err)
		}
		if fs.Type != unix.NSFS_MAGIC {
			return fmt.Errorf("file %d is not a namespace", fd)
		}
		if err := errors.Join(unix.Fstat(fd, &left), unix.Stat("/proc/self/ns/"+name, &here)); err != nil {
			return fmt.Errorf("comparing namespaces: %w", err)
		}
		if left.Dev == here.Dev && left.Ino == here.Ino {
			return fmt.Errorf("the %s namespace is the machine's", name)
		}
		_ = unix.Close(fd) // read only
	}
	links, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("listing links: %w", err)
	}
	if len(links) != 1 {
		return fmt.Errorf("there are %d links, not only lo", len(links))
	}
	return nil
}

// mountTmpfs mounts an empty file system for all files of the demo, over a folder that every
// machine has and in which the programs do not lie. It returns that folder.
func mountTmpfs(bin string) (string, error) {
	for _, dir := range []string{"/run", "/tmp", "/mnt", "/var"} {
		info, err := os.Stat(dir)
		if err != nil || !info.IsDir() || strings.HasPrefix(bin+"/", dir+"/") {
			continue
		}
		if err := unix.Mount("berth-demo", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700"); err != nil {
			return "", fmt.Errorf("mounting a tmpfs on %s: %w", dir, err)
		}
		return dir, nil
	}
	return "", errors.New("none of /run, /tmp, /mnt and /var can be used for the demo's files")
}
