package main

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

// A pod with CAP_NET_ADMIN can write to a socket of the plugin in the pod's namespace until that
// socket is connected to the kernel. So the pod can answer the plugin's question before the kernel
// does: with the error of a node that lacks something, or with a forged link. The pod can also fill
// the socket. The plugin ignores the pod's answers. A full socket loses the kernel's answer, but a
// lost answer makes no DEL fail.
func TestPodAnswersForKernel(t *testing.T) {
	nettest.Need(t)
	pod := nettest.Pod(t)
	order := binary.NativeEndian
	forged := func(typ uint16, size int, body []byte) []byte {
		b := order.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+size))
		b = order.AppendUint16(b, typ)
		b = append(b, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0) // flags, sequence and port
		return append(append(b, body...), make([]byte, size-len(body))...)
	}
	errno := int32(unix.EAGAIN)
	for name, test := range map[string]struct {
		message []byte
		times   int // 0: until there is no room
	}{
		"an error": {forged(unix.NLMSG_ERROR, 20, order.AppendUint32(nil, uint32(-errno))), 1},
		"a link":   {forged(unix.RTM_NEWLINK, unix.SizeofIfInfomsg, nil), 3},
		"too much": {forged(unix.NLMSG_NOOP, 8<<10, nil), 0},
	} {
		t.Run(name, func(t *testing.T) {
			var got answer
			err := pod.Do(func() error {
				fd, to := netlinkSocket(t)
				defer unix.Close(fd)
				forger, _ := netlinkSocket(t)
				defer unix.Close(forger)
				for n := 0; test.times == 0 || n < test.times; n++ {
					if err := unix.Sendto(forger, test.message, unix.MSG_DONTWAIT, to); err == unix.EAGAIN && test.times == 0 {
						break
					} else if err != nil {
						t.Fatal(err)
					}
				}
				var buf [16 << 10]byte
				var err error
				got, err = exchange(fd, message(device{name: "lo"}, unix.RTM_GETLINK, unix.NLM_F_REQUEST, 0), buf[:])
				return err
			})
			if test.times == 0 {
				if err != errLost || passing(err) != nil {
					t.Errorf("a full socket is %v", err)
				}
			} else if err != nil || got.index() != 1 || !bytes.Equal(got.attribute(unix.IFLA_IFNAME), []byte("lo\x00")) {
				t.Errorf("lo is %q, %v", got, err)
			}
		})
	}
}

// A pod cannot write to the plugin's sockets.
func TestPodCannotWrite(t *testing.T) {
	nettest.Need(t)
	must(t, nettest.Pod(t).Do(func() error {
		fd, err := open()
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to, err := unix.Getsockname(fd)
		if err != nil {
			return err
		}
		pods, _ := netlinkSocket(t)
		defer unix.Close(pods)
		if err := unix.Sendto(pods, make([]byte, unix.SizeofNlMsghdr), unix.MSG_DONTWAIT, to); err != unix.ECONNREFUSED {
			t.Errorf("the pod's message: %v", err)
		}
		return nil
	}))
}

// netlinkSocket opens a socket in the calling thread's network namespace, and returns
// its address.
func netlinkSocket(t *testing.T) (int, unix.Sockaddr) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	must(t, err)
	must(t, unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	address, err := unix.Getsockname(fd)
	must(t, err)
	return fd, address
}
