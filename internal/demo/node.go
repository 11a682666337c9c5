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

	"github.com/berth-net/berth/internal/kernel/ns"
)

// node is the machine that the story is about: the inner process's namespaces.
type node struct {
	bin  string // folder of the programs
	root string // the agent's --root
	dir  string // everything else of the demo: pods' namespaces, libcni's cache
}

// newNode furnishes the fresh namespaces. host is the value of envHost: nothing
// is touched in that network namespace.
func newNode(host, bin string) (*node, error) {
	if err := guard(host); err != nil {
		return nil, err
	}
	// mount --make-rprivate /: what is mounted here is not seen outside.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("making mounts private: %w", err)
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

// guard refuses to work anywhere but in a fresh network namespace.
func guard(host string) error {
	self, err := ns.Self()
	if err != nil {
		return err
	}
	defer self.Close()
	links, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("listing links: %w", err)
	}
	if identity(self.Ref()) == host || len(links) != 1 {
		return errors.New("the demo is not in namespaces of its own, and touches nothing; unset " + envHost)
	}
	return nil
}

// mountTmpfs mounts an empty file system for all of the demo's files, over a
// folder that every machine has and that the programs are not in.
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
