package ns_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// threadNetns returns the network namespace of the calling thread, such as "net:[4026531840]".
func threadNetns() string {
	link, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return err.Error()
	}
	return link
}

func named(n *ns.Netns) string { return fmt.Sprintf("net:[%d]", n.Ref().Ino) }

func TestDo(t *testing.T) {
	home := threadNetns()
	a, b := nettest.Pod(t), nettest.Pod(t)
	before := openFiles(t)
	mine := errors.New("mine")
	err := a.Do(func() error {
		if got := threadNetns(); got != named(a) {
			t.Errorf("inside %s: %s", named(a), got)
		}
		if err := b.Do(func() error {
			if got := threadNetns(); got != named(b) {
				t.Errorf("inside %s, inside %s: %s", named(b), named(a), got)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if got := threadNetns(); got != named(a) {
			t.Errorf("back inside %s: %s", named(a), got)
		}
		return mine
	})
	if err != mine {
		t.Errorf("Do = %v, not what its function returned", err)
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d files open before, %d after", before, after)
	}

	// The next goroutine's thread is in the process's own namespace.
	var group sync.WaitGroup
	for range 64 {
		group.Go(func() {
			if err := a.Do(func() error { return nil }); err != nil {
				t.Error(err)
			}
			if got := threadNetns(); got != home {
				t.Errorf("a thread was left in %s", got)
			}
		})
	}
	group.Wait()
}

func TestDoOfClosed(t *testing.T) {
	n := nettest.Pod(t)
	n.Close()
	if err := n.Do(func() error { t.Error("the function ran"); return nil }); !errors.Is(err, unix.EBADF) {
		t.Errorf("Do of a closed namespace: %v", err)
	}
}

func TestDoPassesGoexitOn(t *testing.T) {
	n := nettest.Pod(t)
	done := make(chan bool)
	go func() {
		passed := false
		defer func() { done <- passed }()
		n.Do(func() error {
			runtime.Goexit()
			return nil
		})
		passed = true
	}()
	if <-done {
		t.Error("Do returned though its function ended the goroutine")
	}
}

// A thread that has lost the right to go home must not run anything else.
func TestDoEndsAThreadThatCannotReturn(t *testing.T) {
	n := nettest.Pod(t)
	var stranded int
	strand := func() error {
		stranded = unix.Gettid()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		return unix.Capset(&header, &none[0])
	}
	err := n.Do(func() error {
		if unix.Gettid() == os.Getpid() { // the main thread cannot end: take another
			return n.Do(strand)
		}
		return strand()
	})
	must(t, err)
	nettest.Eventually(t, "the thread's end", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", stranded))
		return errors.Is(err, os.ErrNotExist)
	})
}

func TestSysctl(t *testing.T) {
	nettest.Need(t)
	const name = "ipv4/ip_forward"
	home, err := ns.Sysctl(name)
	must(t, err)
	other := map[string]string{"0": "1", "1": "0"}[home]
	n := nettest.Pod(t)
	err = n.Do(func() error {
		if err := ns.SetSysctl(name, other); err != nil {
			return err
		}
		got, err := ns.Sysctl(name)
		if got != other {
			t.Errorf("%s inside is %q after it was set to %q", name, got, other)
		}
		return err
	})
	must(t, err)
	if got, err := ns.Sysctl(name); got != home || err != nil {
		t.Errorf("%s outside is %q (%v), and was %q", name, got, err, home)
	}
}

func TestSysctlRefuses(t *testing.T) {
	nettest.Need(t)
	for _, name := range []string{"", "/etc/passwd", "ipv4/conf/../../../kernel/hostname"} {
		if _, err := ns.Sysctl(name); err == nil {
			t.Errorf("Sysctl(%q) reads something", name)
		}
		if err := ns.SetSysctl(name, "x"); err == nil {
			t.Errorf("SetSysctl(%q) writes something", name)
		}
	}
	const missing = "ipv4/conf/nowhere/forwarding"
	if _, err := ns.Sysctl(missing); !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), missing) {
		t.Errorf("Sysctl of a missing interface: %v", err)
	}
	if err := ns.SetSysctl(missing, "1"); !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), missing) {
		t.Errorf("SetSysctl of a missing interface: %v", err)
	}
	if err := ns.SetSysctl("ipv4/ip_forward", "maybe"); !errors.Is(err, unix.EINVAL) {
		t.Errorf("SetSysctl of a bad value: %v", err)
	}
}

func TestHasLink(t *testing.T) {
	nettest.Need(t)
	inside := nettest.Pod(t)
	nettest.Run(t, inside, "ip link add plain type veth peer name other")
	nettest.Run(t, inside, "ip link property add dev plain altname second")
	nettest.Run(t, inside, "ip link set lo name narrow")
	nettest.Run(t, inside, "ip link set narrow mtu 67") // the link no longer carries IPv4, and has no IPv4 sysctls
	must(t, inside.Do(func() error {
		for name, want := range map[string]bool{
			"plain": true, "other": true, "narrow": true, "second": true, "": false, "eth0": false, "lo": false,
			"all": false, "default": false, "..": false, "plain/mtu": false, "othe": false, "secondsecondsecond": false,
		} {
			if got, err := ns.HasLink(name); got != want || err != nil {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		}
		return nil
	}))
}

// A folder of a link's sysctls ends when somebody renames the link: the folder never becomes that of
// another link that gets the name.
func TestSysctlsOfRenamedLink(t *testing.T) {
	pod := nettest.Pod(t)
	nettest.Run(t, pod, "ip link add first type veth peer name third")
	nettest.Run(t, pod, "ip link add second type veth peer name fourth")
	must(t, pod.Do(func() error {
		for _, family := range []string{"ipv4", "ipv6"} {
			f, err := ns.OpenSysctls(family + "/conf/first")
			must(t, err)
			defer f.Close()
			must(t, f.Set("accept_source_route", "0"))
			if value, err := f.Get("accept_source_route"); value != "0" || err != nil {
				t.Errorf("%s: what was set is %q, %v", family, value, err)
			}
			for _, rename := range []string{"first name away", "second name first", "first name second", "away name first"} {
				nettest.Run(t, pod, "ip link set "+rename)
				_, get := f.Get("accept_source_route")
				if set := f.Set("accept_source_route", "1"); !errors.Is(get, unix.ENOENT) || !errors.Is(set, unix.ENOENT) {
					t.Errorf("%s, after %q: Get says %v, and Set %v", family, rename, get, set)
				}
			}
		}
		return nil
	}))
	if _, err := ns.OpenSysctls("ipv4/conf/../../../kernel"); err == nil {
		t.Error("a folder outside of net is open")
	}
}
