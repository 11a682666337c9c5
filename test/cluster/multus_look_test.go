package cluster

import (
	"bufio"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nad"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/beside"
)

// looks returns what there is to see of the pods.
func (c *cluster) looks() map[string]beside.Look {
	t, n := c.t, c.nodes[0]
	t.Helper()
	all, reserved, caches := map[string]beside.Look{}, n.reservations(), n.caches("all")
	for _, p := range c.pods("beside") {
		name := p.Metadata.Name
		all[name] = beside.Look{beside.Refused: strconv.FormatBool(!p.ready())}
		if !p.ready() {
			continue
		}
		was, ok := caches[name]
		if !ok {
			t.Fatalf("libcni has no result of %s", name)
		}
		for field, text := range c.look(name, was) {
			all[name][field] = unplaced(text, reserved[was.ContainerID])
		}
	}
	return all
}

// nodeLook returns what there is to see of the node with all pods that nobody refuses, beside what empty says. It first deletes the others: such a pod
// may be half attached.
func (c *cluster) nodeLook(empty []string) beside.Look {
	t, n := c.t, c.nodes[0]
	t.Helper()
	gone := []string{"delete", "pods", "--timeout=60s"}
	for name, p := range besidePods {
		if p.wrong {
			gone = append(gone, name)
		}
	}
	c.mustKubectl(gone...)
	var reserved map[string]map[string]string
	nettest.Eventually(t, "the addresses of the pods alone", func() bool {
		reserved = n.reservations()
		return len(reserved) == len(besidePods)-len(gone)+3
	})
	nettest.Eventually(t, "no other host to have a bridge's address", func() bool { return len(n.tentative()) == 0 })
	given := map[string]string{}
	for _, addresses := range reserved {
		maps.Copy(given, addresses)
	}
	lines := strings.Split(unplaced(strings.Join(added(empty, beside.Lines(n.kept(), "")), "\n"), given), "\n")
	slices.Sort(lines)
	return beside.Look{"node": strings.Join(lines, "\n")}
}

// tentative returns the node's IPv6 addresses of which the kernel does not know yet whether another host has them (RFC 4862, section 5.4): they have
// no local route.
func (n *node) tentative() (addrs []string) {
	n.t.Helper()
	must(n.t, n.net.Do(func() error {
		all, err := netlink.AddrList(nil, netlink.FAMILY_V6)
		for _, a := range all {
			if a.Flags&unix.IFA_F_TENTATIVE != 0 {
				addrs = append(addrs, a.IPNet.String())
			}
		}
		return err
	}))
	return addrs
}

// added returns the lines of now that was lacks. A line may be there several times.
func added(was, now []string) (lines []string) {
	count := map[string]int{}
	for _, l := range was {
		count[l]++
	}
	for _, l := range now {
		if count[l]--; count[l] < 0 {
			lines = append(lines, l)
		}
	}
	return lines
}

// nilGateway is how a status lists the gateway of a route without one. It is a field of its own, so that the known difference hides no other.
var nilGateway = regexp.MustCompile(`,\s*"gateway": \[\s*"\\u003cnil\\u003e"\s*\]`)

// look returns what there is to see of a pod that is ready.
func (c *cluster) look(name string, was cached) beside.Look {
	t, n := c.t, c.nodes[0]
	t.Helper()
	at, path := n.inside(was)
	defer at.Close()
	status := c.statusOf(name)
	return beside.Look{
		"pod":    strings.Join(beside.Lines(nettest.Snapshot(t, at), path), "\n"),
		"order":  strings.Join(linkOrder(t, at), "\n"),
		"result": beside.Plain(beside.JSON(was.Result), path),
		"status": beside.Plain(nilGateway.ReplaceAllString(status, ""), path),
		"nil":    fmt.Sprint(len(nilGateway.FindAllString(status, -1))),
		"ports":  n.answersAt(besidePods[name].hostPort) + n.answersAt(besidePods[name].annotated),
	}
}

// statusOf waits until a pod has a status of its networks, and returns it.
func (c *cluster) statusOf(name string) (status string) {
	c.t.Helper()
	nettest.Eventually(c.t, "the status of "+name, func() bool {
		var p struct {
			Metadata struct{ Annotations map[string]string }
		}
		c.get(&p, defaultPath+"pods/"+name)
		status = p.Metadata.Annotations[nad.KeyStatus]
		return status != ""
	})
	return status
}

// answersAt waits until somebody answers from outside at a port of the node, and returns what is said: the pod's name. "": there is no port.
func (n *node) answersAt(port int) (said string) {
	n.t.Helper()
	if port == 0 {
		return ""
	}
	nettest.Eventually(n.t, fmt.Sprintf("an answer at port %d of %s", port, n.name), func() bool {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(n.address4(), strconv.Itoa(port)), time.Second)
		if err != nil {
			return false
		}
		defer conn.Close()
		must(n.t, conn.SetDeadline(time.Now().Add(time.Second)))
		line, err := bufio.NewReader(conn).ReadString('\n')
		said, _, _ = strings.Cut(line, " ")
		return err == nil
	})
	return fmt.Sprintf("%d: %s\n", port, said)
}
