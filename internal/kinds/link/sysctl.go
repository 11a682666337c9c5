package link

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// sysctl is a sysctl of the host's end, with its value and the value that it has to have.
type sysctl struct {
	family, name string // net/FAMILY/conf/LINK/NAME
	said         bool   // the kernel sent the value have with the link
	have, want   int32
}

// sysctls returns the sysctls of the host's end that Berth sets. They keep the pod from
// configuring the host, and switch IPv6 on the link on or off. If IPv6 is off, no other sysctl of
// IPv6 matters.
//
// The host ignores the pod's router advertisements (accept_ra).
//
// The pod must not choose the way by which the node sends its packets, by source routes or segments
// (accept_source_route, seg6_enabled, rpl_seg_enabled): when the rules for destinations look at such a
// packet, it has another destination than its last one.
//
// The pod must not fill the host's one table of neighbours; nftables cannot prevent that,
// because it does not see ARP. The host makes an entry for every sender that it answers by ARP. So the
// host answers nobody for its own addresses (arp_ignore 8), and is no proxy for addresses elsewhere
// (medium_id -1) or behind the same link (proxy_arp_pvlan; Linux also applies conf/all's). The pod
// knows its gateway's MAC without asking. The host must also make no entries for senders that only
// announce themselves (arp_accept, where Linux also applies conf/all's; accept_untracked_na).
//
// If forwards is set, the node has to forward what the pod sends (forwarding). A new link gets this
// sysctl from conf/default, and each link from conf/all whenever somebody changes conf/all.
func (s *Spec) sysctls(c rtnl.Conf, forwards bool) []sysctl {
	all := []sysctl{
		{"ipv4", "arp_ignore", c.IPv4, c.ARPIgnore, 8},
		{"ipv4", "medium_id", c.IPv4, c.MediumID, -1},
		{"ipv4", "proxy_arp_pvlan", c.IPv4, c.ProxyARPPVLAN, 0},
		{"ipv4", "arp_accept", c.IPv4, c.ARPAccept, 0},
		{"ipv4", "accept_source_route", c.IPv4, c.AcceptSourceRoute, 0},
	}
	if forwards && s.has(false) {
		all = append(all, sysctl{"ipv4", "forwarding", c.IPv4, c.Forwarding4, 1})
	}
	if forwards && s.has(true) {
		all = append(all, sysctl{"ipv6", "forwarding", c.IPv6, c.Forwarding6, 1})
	}
	if !s.has(true) {
		return append(all, sysctl{"ipv6", "disable_ipv6", c.IPv6, c.DisableIPv6, 1})
	}
	return append(all,
		sysctl{"ipv6", "disable_ipv6", c.IPv6, c.DisableIPv6, 0},
		sysctl{"ipv6", "accept_ra", c.IPv6, c.AcceptRA, 0},
		sysctl{"ipv6", "seg6_enabled", c.IPv6, c.Seg6Enabled, 0},
		sysctl{"ipv6", "rpl_seg_enabled", c.IPv6, c.RPLSegEnabled, 0},
		sysctl{"ipv6", "accept_untracked_na", c.IPv6, c.AcceptUntrackedNA, 0})
}

// optional reports whether a kernel may lack a sysctl because the kernel also lacks the feature that
// the sysctl controls: rpl_seg_enabled before Linux 5.7, accept_untracked_na before 5.19, and
// disable_ipv6 without IPv6.
func (x sysctl) optional() bool {
	return x.name == "rpl_seg_enabled" || x.name == "accept_untracked_na" || x.name == "disable_ipv6" && x.want == 1
}

// errRenamed says that somebody renamed a link while its sysctls were set.
var errRenamed = errors.New("somebody has just renamed the link")

// confs are the folders of a link's sysctls, by family (net/FAMILY/conf/LINK). confs opens a folder by
// the link's name, and then checks that the link still has that name. The kernel ends the folder when
// the link loses its name, so confs writes nothing to another link that gets the name meanwhile.
type confs struct {
	conn *rtnl.Conn
	name string
	link int // its index
	open map[string]*ns.Sysctls
}

func (l *Links) confs(link rtnl.Link) *confs {
	return &confs{l.conn, link.Name, link.Index, map[string]*ns.Sysctls{}}
}

// of returns the folder of a family. If the link has another name, the error is errRenamed.
func (c *confs) of(family string) (*ns.Sysctls, error) {
	if f := c.open[family]; f != nil {
		return f, nil
	}
	f, err := ns.OpenSysctls(family + "/conf/" + c.name)
	if errors.Is(err, fs.ErrNotExist) {
		if renamed := c.named(); renamed != nil {
			return nil, renamed
		}
		f, err = ns.OpenSysctls(family + "/conf/" + c.name) // the link may have had another name for a moment
	}
	if err != nil {
		return nil, err
	}
	if err := c.named(); err != nil {
		f.Close()
		return nil, err
	}
	c.open[family] = f
	return f, nil
}

// named returns errRenamed if the link has another name, and kernel.ErrNotFound if the link is gone.
func (c *confs) named() error {
	names, err := c.conn.Names(c.link)
	switch {
	case err != nil:
	case names[0] == "":
		err = fmt.Errorf("link %s (index %d): %w", c.name, c.link, kernel.ErrNotFound)
	case names[0] != c.name:
		err = fmt.Errorf("link %s (index %d) is called %s: %w", c.name, c.link, names[0], errRenamed)
	}
	return err
}

// explain turns the error of a folder's file into errRenamed if the folder has ended (ns.Sysctls). The
// link may have its name again by then, in a new folder: the kernel need not lack the sysctl. Every
// kernel has forwarding, in the folders of both families.
func (c *confs) explain(f *ns.Sysctls, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if renamed := c.named(); renamed != nil {
		return renamed
	}
	if _, ended := f.Get("forwarding"); errors.Is(ended, fs.ErrNotExist) {
		return fmt.Errorf("link %s (index %d) had another name for a moment: %w", c.name, c.link, errRenamed)
	}
	return err
}

func (c *confs) close() {
	for _, f := range c.open {
		f.Close()
	}
}

func (c *confs) get(x sysctl) (string, error) {
	f, err := c.of(x.family)
	if err != nil {
		return "", err
	}
	value, err := f.Get(x.name)
	return value, c.explain(f, err)
}

func (c *confs) set(x sysctl) error {
	f, err := c.of(x.family)
	if err != nil {
		return err
	}
	return c.explain(f, f.Set(x.name, strconv.Itoa(int(x.want))))
}

// setSysctls sets those of a link's sysctls that differ, in the calling thread's network
// namespace. setSysctls first reads those that the kernel did not send with the link, because writing
// disable_ipv6 takes the lock of all links.
func (c *confs) setSysctls(all []sysctl) error {
	for _, x := range all {
		if !x.said {
			have, err := c.get(x)
			if errors.Is(err, fs.ErrNotExist) && x.optional() {
				continue
			}
			if err != nil {
				return err
			}
			if have == strconv.Itoa(int(x.want)) {
				continue
			}
		} else if x.have == x.want {
			continue
		}
		if err := c.set(x); err != nil {
			return err
		}
	}
	return nil
}
