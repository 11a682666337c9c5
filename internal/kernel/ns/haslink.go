package ns

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The method HasLink calls the function HasLink in the namespace.
//
//	ip -n POD link show NAME
func (n *Netns) HasLink(name string) (there bool, err error) {
	err = n.Do(func() (err error) {
		there, err = HasLink(name)
		return err
	})
	return there, err
}

// HasLink reports whether the calling thread's network namespace has a link of that name or
// alternative name: whether the kernel would refuse the name to a new link. HasLink asks by
// SO_BINDTODEVICE, which looks the name up as the kernel does for a new link, and costs a fraction of
// what a netlink socket costs. SIOCGIFINDEX would start modprobe for a name that nobody has (dev_load).
// Before Linux 5.7, SO_BINDTODEVICE needs CAP_NET_RAW.
//
//	ip link show NAME
func HasLink(name string) (bool, error) {
	if name == "" || len(name) >= unix.IFNAMSIZ {
		return false, nil // for an empty name the kernel would only unbind the socket, and it would cut a long name
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("looking for link %s: %w", name, os.NewSyscallError("socket", err))
	}
	defer unix.Close(fd)
	err = unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, name)
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return false, fmt.Errorf("looking for link %s: %w", name, os.NewSyscallError("setsockopt", err))
	}
	return err == nil, nil
}
