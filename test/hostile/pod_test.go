package hostile

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// pod is an attached container.
type pod struct {
	id     string
	at     *ns.Netns
	host   string           // host veth
	mac    net.HardwareAddr // of the host veth
	ip4    netip.Addr
	ip6    netip.Addr
	result string // what ADD answered
}

// tryAdd attaches a new container.
func (n *node) tryAdd(container string, keys ...string) (*pod, error) {
	n.t.Helper()
	p := &pod{id: container, at: nettest.Pod(n.t)}
	raw, err := n.Exec("ADD", container, p.at.Ref().Path, keys...)
	if err != nil {
		return p, fmt.Errorf("ADD of %s: %w", container, err)
	}
	got, err := programs.ReadResult(raw)
	if err != nil {
		return p, err
	}
	p.host, p.result = got.Host, got.Raw
	for _, addr := range got.Addrs {
		if addr.Is4() {
			p.ip4 = addr
		} else {
			p.ip6 = addr
		}
	}
	link, err := netlink.LinkByName(p.host)
	if err != nil {
		return p, err
	}
	p.mac = link.Attrs().HardwareAddr
	return p, nil
}

func (n *node) add(container string) *pod {
	n.t.Helper()
	p, err := n.tryAdd(container)
	must(n.t, err)
	return p
}

// adds attaches several containers, named by a letter and their number.
func (n *node) adds(letter string, many int) (pods []*pod) {
	n.t.Helper()
	for i := range many {
		pods = append(pods, n.add(letter+strconv.Itoa(i)))
	}
	return pods
}

// tryDel deletes a container as a runtime does that has kept the result of ADD.
func (n *node) tryDel(p *pod, keys ...string) error {
	_, err := n.Exec("DEL", p.id, p.at.Ref().Path, append(keys, `"prevResult":`+p.result)...)
	return err
}

func (n *node) del(p *pod, keys ...string) {
	n.t.Helper()
	must(n.t, n.tryDel(p, keys...))
}

// wait has a DEL answered when all is gone.
const wait = `"wait":true`

func (n *node) check(p *pod) error {
	_, err := n.Exec("CHECK", p.id, p.at.Ref().Path, `"prevResult":`+p.result)
	return err
}

// mute has the pod drop all that comes in, so that nobody in the pod answers and so ends a connection.
func (p *pod) mute(t *testing.T) {
	t.Helper()
	nettest.Run(t, p.at, "nft add table inet mute")
	nettest.Run(t, p.at, "nft add chain inet mute in { type filter hook input priority 0 ; policy drop ; }")
}

// linkOf returns the link with a name; nil if there is none.
func linkOf(t *testing.T, name string) *netlink.LinkAttrs {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if missing := (netlink.LinkNotFoundError{}); err != nil {
		if !errors.As(err, &missing) {
			t.Fatal(err)
		}
		return nil
	}
	return link.Attrs()
}

// isUp reports whether a link is there and up.
func isUp(t *testing.T, name string) bool {
	t.Helper()
	l := linkOf(t, name)
	return l != nil && l.Flags&net.FlagUp != 0
}
