package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// way is a path of packets between two pods.
type way struct {
	name     string
	from, to *pod
	addrs    []netip.Addr // of the pod to, IPv4 first
}

// connected calls f with the two ends of a TCP connection between the pods.
func (w *way) connected(addr netip.Addr, f func(near, far *net.TCPConn) error) error {
	from, err := w.from.ref.Open()
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := w.to.ref.Open()
	if err != nil {
		return err
	}
	defer to.Close()
	var l net.Listener
	if err := to.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		return err
	}); err != nil {
		return err
	}
	defer l.Close()
	var near net.Conn
	if err := from.Do(func() (err error) {
		near, err = net.DialTimeout("tcp", l.Addr().String(), opTimeout)
		return err
	}); err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	defer near.Close()
	far, err := l.Accept()
	if err != nil {
		return err
	}
	defer far.Close()
	if err := f(near.(*net.TCPConn), far.(*net.TCPConn)); err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	return nil
}

// streamChunk is how many bytes one read or write of a stream has at most.
const streamChunk = 256 << 10

// stream sends by one TCP connection for a time, and returns how long a gigabyte (1e9 bytes) takes.
func (w *way) stream(addr netip.Addr, during time.Duration) (gigabyte time.Duration, err error) {
	err = w.connected(addr, func(near, far *net.TCPConn) error {
		sent := make(chan error, 1)
		go func() {
			data := make([]byte, streamChunk)
			for {
				if _, err := near.Write(data); err != nil {
					sent <- err
					return
				}
			}
		}()
		data := make([]byte, streamChunk)
		if _, err := io.ReadFull(far, data); err != nil { // the connection is warm then
			return err
		}
		begun, bytes := time.Now(), 0
		for time.Since(begun) < during {
			n, err := far.Read(data)
			if err != nil {
				return err
			}
			bytes += n
		}
		gigabyte = time.Duration(float64(time.Since(begun)) / float64(bytes) * 1e9)
		near.Close()
		if err := <-sent; !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	return gigabyte, err
}

// turns sends a byte to and fro n times, and returns how long each turn takes. Threads that block in the kernel do so, without
// Go's scheduler, because that takes as long as the network.
func (w *way) turns(addr netip.Addr, n int) (took []time.Duration, err error) {
	const warm = 100
	err = w.connected(addr, func(near, far *net.TCPConn) error {
		ask, err := blocking(near)
		if err != nil {
			return err
		}
		defer ask.Close()
		answer, err := blocking(far)
		if err != nil {
			return err
		}
		defer answer.Close()
		answered := make(chan error, 1)
		go func() {
			answered <- onThread(func() error {
				for range warm + n {
					if err := pass(answer, unix.Read); err != nil {
						return err
					}
					if err := pass(answer, unix.Write); err != nil {
						return err
					}
				}
				return nil
			})
		}()
		err = onThread(func() error {
			for i := range warm + n {
				begun := time.Now()
				if err := pass(ask, unix.Write); err != nil {
					return err
				}
				if err := pass(ask, unix.Read); err != nil {
					return err
				}
				if i >= warm {
					took = append(took, time.Since(begun))
				}
			}
			return nil
		})
		if err != nil {
			_ = unix.Shutdown(int(answer.Fd()), unix.SHUT_RDWR) // so that the other end ends, too
		}
		return errors.Join(err, <-answered)
	})
	return took, err
}

// blocking returns a connection as a file that blocks.
func blocking(c *net.TCPConn) (*os.File, error) {
	f, err := c.File()
	if err != nil {
		return nil, err
	}
	return f, unix.SetNonblock(int(f.Fd()), false)
}

func onThread(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return f()
}

// pass reads or writes one byte.
func pass(f *os.File, call func(int, []byte) (int, error)) error {
	var one [1]byte
	for {
		n, err := call(int(f.Fd()), one[:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		default:
			return nil
		}
	}
}
