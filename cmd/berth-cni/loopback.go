package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
	"github.com/berth-net/berth/internal/kernel/ns"
)

// loopback is the type by which containerd has each pod's lo set up. Under this name the program
// sets lo up, on nodes without the reference plugins: "berth install" copies the program to this
// name. The program needs no agent for that, since lo does not outlive the pod's network namespace.
const loopback = "loopback"

// lo is the interface, whatever CNI_IFNAME says.
const lo = "lo"

// loopback does a verb of the plugin loopback, and returns what is printed on success. STATUS, GC
// and DEL have nothing to do: nothing outlives the network namespace. A late DEL of a pod that is
// gone may name a path that another pod has by now, and that pod's lo has to stay up.
func (c *call) loopback(command string) ([]byte, *api.Error) {
	switch command {
	case "ADD":
		return c.loUp()
	case "CHECK":
		return nil, c.loIsUp()
	}
	return nil, nil
}

// loUp sets lo up, as `ip link set lo up` does. Behind another plugin of a list, loUp passes on that
// plugin's answer.
func (c *call) loUp() ([]byte, *api.Error) {
	var all []address
	err := c.inPod(func() (err error) {
		if err = setFlags(unix.IFF_UP); err == nil {
			all, err = addresses()
		}
		return err
	})
	if err != nil {
		return nil, loFailed("setting lo up", err)
	}
	if fields, err := scan.Object(c.raw); err == nil {
		if prev := fields.Get("prevResult"); prev != nil {
			return append(prev, '\n'), nil
		}
	}
	return append(c.loResult(all), '\n'), nil
}

// loIsUp returns an error if lo is down.
func (c *call) loIsUp() *api.Error {
	var link answer
	err := c.inPod(func() (err error) {
		link, err = look(device{name: lo})
		return err
	})
	if err != nil {
		return loFailed("asking for lo", err)
	}
	if link.flags()&unix.IFF_UP == 0 {
		return cni.Errorf(cni.CodeCheck, "the attachment is not as its result says", "lo is down in %s", c.netns)
	}
	return nil
}

// inPod calls do in the pod's network namespace. do may have to wait for the kernel's lock.
func (c *call) inPod(do func() error) error {
	pod, err := c.openNetns()
	if err != nil {
		return err
	}
	defer pod.Close()
	return inTime(c.deadline, "the kernel", func() error { return pod.Do(do) })
}

// loFailed returns the error of a verb. If the namespace is not there, another try would not find
// it, so the error does not say "try again".
func loFailed(what string, err error) *api.Error {
	if errors.Is(err, ns.ErrGone) || errors.Is(err, ns.ErrNotNetns) {
		return cni.Errorf(cni.CodeEnv, "invalid environment variable CNI_NETNS", "%v", err)
	}
	return cni.Errorf(cni.CodeTryAgain, what, "%v", err)
}

// setFlags sets lo up (unix.IFF_UP) or down (0), in the calling thread's network namespace.
func setFlags(up uint32) error {
	m := message(device{name: lo}, unix.RTM_NEWLINK, unix.NLM_F_REQUEST|unix.NLM_F_ACK, unix.IFF_UP)
	binary.NativeEndian.PutUint32(m[unix.SizeofNlMsghdr+8:], up) // ifi_flags
	var buf [4096]byte
	got, err := ask(m, buf[:])
	if err != nil {
		return err
	}
	return parseAnswer(got)
}

// address is an address of lo, as it is written in a result.
type address struct{ version, cidr string }

// addresses returns the addresses of the loopback networks on lo, of each family the first, as
// `ip address show lo` lists them. Other addresses, which a pod may give to its lo, do not count.
func addresses() (all []address, err error) {
	link, err := look(device{name: lo})
	if err != nil {
		return nil, err
	}
	order := binary.NativeEndian
	m := order.AppendUint32(make([]byte, 0, 32), unix.SizeofNlMsghdr+unix.SizeofIfAddrmsg)
	m = order.AppendUint16(m, unix.RTM_GETADDR)
	m = order.AppendUint16(m, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	m = order.AppendUint32(m, 1)                         // sequence
	m = order.AppendUint32(m, 0)                         // port: the kernel's
	m = append(m, make([]byte, unix.SizeofIfAddrmsg)...) // of each family and link
	err = dump(m, unix.RTM_NEWADDR, func(got []byte) bool {
		a, ok := loAddress(got, link.index())
		if ok && (len(all) == 0 || all[len(all)-1].version != a.version) {
			all = append(all, a)
		}
		return true
	})
	return all, err
}

// loAddress returns the loopback address that a message of RTM_NEWADDR has; false if it has none
// of this link.
func loAddress(m []byte, link uint32) (address, bool) {
	const head = unix.SizeofNlMsghdr + unix.SizeofIfAddrmsg
	if len(m) < head || binary.NativeEndian.Uint32(m[unix.SizeofNlMsghdr+4:]) != link {
		return address{}, false
	}
	bits := "/" + strconv.Itoa(int(m[unix.SizeofNlMsghdr+1]))
	ip := attributeIn(m, head, unix.IFA_ADDRESS)
	switch {
	case len(ip) == 4 && ip[0] == 127:
		return address{"4", fmt.Sprintf("%d.%d.%d.%d", ip[0], ip[1], ip[2], ip[3]) + bits}, true
	case string(ip) == "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01":
		return address{"6", "::1" + bits}, true
	}
	return address{}, false
}

// loResult returns ADD's result in the form of the configuration's version (CNI 1.1, section 5,
// "Success").
func (c *call) loResult(all []address) []byte {
	v := c.head.Version
	out := scan.AppendString([]byte(`{"cniVersion":`), v)
	if v == "0.1.0" || v == "0.2.0" {
		for _, a := range all {
			out = append(out, `,"ip`+a.version+`":{"ip":"`+a.cidr+`"}`...)
		}
		return append(out, '}')
	}
	out = append(out, `,"interfaces":[{"name":"lo","mac":"00:00:00:00:00:00","sandbox":`...)
	out = append(scan.AppendString(out, c.netns), `}],"ips":[`...)
	for i, a := range all {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, '{')
		if v[0] == '0' {
			out = append(out, `"version":"`+a.version+`",`...)
		}
		out = append(out, `"interface":0,"address":"`+a.cidr+`"}`...)
	}
	return append(out, "]}"...)
}
