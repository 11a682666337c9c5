package agent

import (
	"net/netip"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
)

// podEnd is a link's other end, in a pod.
type podEnd struct {
	ref   ns.Ref
	mac   string
	addrs []netip.Addr
}

// netnsPaths are where network namespaces are found: first where runtimes and
// people bind them, then those of processes.
var netnsPaths = []string{"/run/netns/*", "/var/run/netns/*", "/run/docker/netns/*", "/proc/[0-9]*/ns/net"}

// wantedEnd is what is known of a link whose other end is looked for.
type wantedEnd struct {
	rtnl.Link
	mac string // of the other end, as the node's neighbours have it; "": not known
}

// findPods looks for the other ends of links, in every network namespace that
// can be found but the node's: a pair is two veths that name each other's
// index, and the pod's has the link-layer address that the node's neighbours
// tell, or that the incarnation's ID gives it. Where only the indices fit, one
// that is alone in that is believed.
func findPods(self ns.Ref, links []wantedEnd) map[string]podEnd {
	wanted := map[int]wantedEnd{}
	for _, l := range links {
		wanted[l.Index] = l
	}
	sure, maybe := map[string]podEnd{}, map[string][]podEnd{}
	seen := map[[2]uint64]bool{{self.Dev, self.Ino}: true}
	for _, pattern := range netnsPaths {
		paths, _ := filepath.Glob(pattern) // the patterns are good
		for _, path := range paths {
			var st unix.Stat_t
			if unix.Stat(path, &st) != nil || seen[[2]uint64{uint64(st.Dev), st.Ino}] {
				continue
			}
			seen[[2]uint64{uint64(st.Dev), st.Ino}] = true
			for _, e := range lookInto(path) {
				host, ok := wanted[e.link.Peer]
				if !ok || host.Peer != e.link.Index {
					continue
				}
				if e.link.MAC == host.mac || host.mac == "" && e.link.MAC == macOf(host.Name) {
					sure[host.Name] = e.podEnd
				} else if host.mac == "" {
					maybe[host.Name] = append(maybe[host.Name], e.podEnd)
				}
			}
		}
	}
	for name, ends := range maybe {
		if _, found := sure[name]; !found && len(ends) == 1 {
			sure[name] = ends[0]
		}
	}
	return sure
}

// macOf is the link-layer address that a link's other end has by its ID.
func macOf(name string) string {
	id, _ := attachment.LinkID(name)
	mac, _ := link.MACs(id)
	return mac
}

// end is a veth in a network namespace.
type end struct {
	link rtnl.Link
	podEnd
}

// lookInto lists the veths of a namespace; none of one that cannot be seen.
func lookInto(path string) []end {
	n, err := ns.Open(path)
	if err != nil {
		return nil
	}
	defer n.Close()
	var ends []end
	_ = n.Do(func() error {
		c, err := rtnl.Here()
		if err != nil {
			return err
		}
		defer c.Close()
		links, err := c.Veths("")
		for _, l := range links {
			e := end{link: l, podEnd: podEnd{ref: n.Ref(), mac: l.MAC}}
			addrs, _ := c.Addresses(l.Index) // without them it is found all the same
			for _, a := range addrs {
				if a.Prefix.IsSingleIP() && !a.Prefix.Addr().IsLinkLocalUnicast() {
					e.addrs = append(e.addrs, a.Prefix.Addr())
				}
			}
			ends = append(ends, e)
		}
		return err
	})
	return ends
}
