package link

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/patience"
	"github.com/berth-net/berth/internal/stamp"
)

// PodEnd is a link's other end, in a pod.
type PodEnd struct {
	Netns     ns.Ref
	MAC       string
	Addresses []netip.Addr
	Egress    rtnl.Rate // the rate that limits what the end sends; zero: none, or FindEnds could not see it
}

// NetnsFolders lists the folders in which FindEnds looks for network namespaces: first those where
// runtimes and people bind namespaces, then that of the processes.
var NetnsFolders = []string{"/run/netns", "/var/run/netns", "/run/docker/netns", processes}

const processes = "/proc"

// listLimit is how long the listing of one folder of network namespaces may take. FindEnds leaves out a
// folder that hangs.
const listLimit = time.Second

var listings patience.Calls

// netnsIn returns the paths of the network namespaces in one of NetnsFolders. It reads only names:
// a look at the file of a name may hang, too.
func netnsIn(folder string) []string {
	names, err := patience.Call(&listings, folder, listLimit, func() ([]string, error) {
		f, err := os.Open(folder)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return f.Readdirnames(-1)
	}, nil)
	if err != nil {
		return nil
	}
	slices.Sort(names)
	var paths []string
	for _, name := range names {
		if folder != processes {
			paths = append(paths, filepath.Join(folder, name))
		} else if name[0] >= '0' && name[0] <= '9' {
			paths = append(paths, filepath.Join(folder, name, "ns/net"))
		}
	}
	return paths
}

// WantedEnd is what a caller of FindEnds knows of a link whose other end FindEnds is to find.
type WantedEnd struct {
	rtnl.Link
	PodMAC string // of the other end, as the node's neighbours have it; "": not known
}

// FindEnds looks for the other ends of the node's links in every network namespace that it can find,
// except the node's own, self. The calling program is in the node's namespace. A pair is two veths that
// name each other's index; the kernel also says which namespace a veth's other end is in, and no pod
// can forge that. The pod's end has the link-layer address that the node's neighbours tell, or that
// follows from the owner's ID. If the neighbours tell none and only the indices match, FindEnds accepts
// the end if no other end matches.
func FindEnds(self ns.Ref, links []WantedEnd) map[string]PodEnd {
	node, err := rtnl.Open(nil)
	if err != nil {
		return nil
	}
	defer node.Close()
	wanted := map[int]WantedEnd{}
	for _, l := range links {
		wanted[l.Index] = l
	}
	sure, maybe := map[string]PodEnd{}, map[string][]PodEnd{}
	EachNetns(self, func(n *ns.Netns) {
		for _, e := range lookInto(node, n, wanted) {
			host := wanted[e.link.Peer]
			if e.link.MAC == host.PodMAC || host.PodMAC == "" && e.link.MAC == macOf(host.Name) {
				sure[host.Name] = e.PodEnd
			} else if host.PodMAC == "" && len(maybe[host.Name]) < 2 {
				maybe[host.Name] = append(maybe[host.Name], e.PodEnd)
			}
		}
	})
	for name, ends := range maybe {
		if _, found := sure[name]; !found && len(ends) == 1 {
			sure[name] = ends[0]
		}
	}
	return sure
}

// EachNetns calls f with every network namespace that it can find in NetnsFolders, each once, except self. f must not keep the namespace.
func EachNetns(self ns.Ref, f func(*ns.Netns)) {
	seen := map[[2]uint64]bool{{self.Dev, self.Ino}: true}
	for _, folder := range NetnsFolders {
		for _, path := range netnsIn(folder) {
			n, err := ns.OpenSoon(path)
			if err != nil {
				continue
			}
			if ref := n.Ref(); !seen[[2]uint64{ref.Dev, ref.Ino}] {
				seen[[2]uint64{ref.Dev, ref.Ino}] = true
				f(n)
			}
			n.Close()
		}
	}
}

// macOf returns the link-layer address of a link's other end, which follows from the ID in the link's
// name.
func macOf(name string) string {
	id, _ := stamp.LinkID(name)
	mac, _ := MACs(id)
	return mac
}

// end is a veth in a network namespace.
type end struct {
	link rtnl.Link
	PodEnd
}

// These constants bound how much of a namespace FindEnds looks at, and how much it keeps, because a pod
// can make the lists of its namespace as long as it likes. FindEnds treats the rest as if the pod hid
// it.
const (
	maxVeths     = 4096
	maxAddresses = 1024 // of a veth and a family
	maxKept      = 16   // how many of these FindEnds keeps, of the addresses that Berth could have given the pod
)

// lookInto lists the veths of a namespace that are the other ends of wanted links. wanted has these
// links by their indices. If lookInto cannot read the namespace it returns no veths.
func lookInto(node *rtnl.Conn, n *ns.Netns, wanted map[int]WantedEnd) []end {
	var here int
	if err := node.Do(rtnl.NetnsID(n.Fd(), &here)); err != nil {
		return nil
	}
	c, err := rtnl.Open(n)
	if err != nil {
		return nil
	}
	defer c.Close()
	looked := 0
	links, _ := c.Veths(func(l rtnl.Link) (bool, error) {
		if looked++; looked > maxVeths {
			return false, rtnl.ErrStop
		}
		host, ok := wanted[l.Peer]
		return ok && host.EndsAt(l.Index, here), nil
	})
	var ends []end
	for _, l := range links {
		var q rtnl.Qdisc
		_ = c.GetQdisc(l.Index, &q) // a limit that FindEnds cannot see counts as none
		ends = append(ends, end{link: l, PodEnd: PodEnd{n.Ref(), l.MAC, addressesOf(c, l.Index), q.Shape}})
	}
	return ends
}

// addressesOf returns the single addresses of a pod's interface. It ignores errors: FindEnds finds the
// interface without addresses, too.
func addressesOf(c *rtnl.Conn, index int) []netip.Addr {
	var addrs []netip.Addr
	for _, ipv6 := range []bool{false, true} {
		looked, kept := 0, 0
		_ = c.EachAddress(index, ipv6, func(a rtnl.Address) error {
			if a.Prefix.IsSingleIP() && !a.Prefix.Addr().IsLinkLocalUnicast() {
				addrs, kept = append(addrs, a.Prefix.Addr()), kept+1
			}
			if looked++; looked >= maxAddresses || kept >= maxKept {
				return rtnl.ErrStop
			}
			return nil
		})
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
