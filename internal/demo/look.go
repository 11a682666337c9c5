package demo

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// look lists, straight from the kernel and with nothing of Berth's, what
// attaching pods changes in a network namespace: a line each, sorted.
func look() ([]string, error) {
	var lines []string
	for _, read := range []func() ([]string, error){links, routes, neighbours, tables, flows} {
		for try := 0; ; try++ {
			some, err := read()
			if errors.Is(err, netlink.ErrDumpInterrupted) && try < 100 { // it changed meanwhile
				continue
			}
			if err != nil {
				return nil, err
			}
			lines = append(lines, some...)
			break
		}
	}
	slices.Sort(lines)
	return lines, nil
}

// added returns the lines of after that are not in before.
func added(before, after []string) []string {
	return slices.DeleteFunc(slices.Clone(after), func(line string) bool { return slices.Contains(before, line) })
}

// changed returns what was added, and what is missing.
func changed(before, after []string) []string {
	lines := added(before, after)
	for _, line := range added(after, before) {
		lines = append(lines, line+" is gone")
	}
	return lines
}

// links is `ip link`.
func links() ([]string, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing links: %w", err)
	}
	var lines []string
	for _, l := range all {
		lines = append(lines, "link "+l.Attrs().Name)
	}
	return lines, nil
}

// routes is `ip route show table all`, both families.
func routes() ([]string, error) {
	var lines []string
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, fmt.Errorf("listing routes: %w", err)
		}
		for _, r := range all {
			lines = append(lines, fmt.Sprintf("route %s table %d type %d proto %d metric %d ifindex %d",
				r.Dst, r.Table, r.Type, r.Protocol, r.Priority, r.LinkIndex))
		}
	}
	return lines, nil
}

// neighbours is `ip neighbour show nud permanent`.
func neighbours() ([]string, error) {
	all, err := netlink.NeighList(0, 0)
	if err != nil {
		return nil, fmt.Errorf("listing neighbours: %w", err)
	}
	var lines []string
	for _, n := range all {
		if n.State&netlink.NUD_PERMANENT != 0 {
			lines = append(lines, fmt.Sprintf("neighbour %s ifindex %d", n.IP, n.LinkIndex))
		}
	}
	return lines, nil
}

// tables is `nft list tables`, with the number of each table's chains.
func tables() ([]string, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("opening nftables: %w", err)
	}
	all, err := conn.ListTables()
	if err != nil {
		return nil, fmt.Errorf("listing nftables tables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("listing nftables chains: %w", err)
	}
	var lines []string
	for _, t := range all {
		n := 0
		for _, c := range chains {
			if c.Table.Name == t.Name && c.Table.Family == t.Family {
				n++
			}
		}
		lines = append(lines, fmt.Sprintf("nftables table %s of %d chains", t.Name, n))
	}
	return lines, nil
}

// flows is `conntrack -L`: whose addresses the kernel still remembers.
func flows() ([]string, error) {
	all, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_UNSPEC)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil // the kernel has no conntrack, and so remembers none
	}
	if err != nil {
		return nil, fmt.Errorf("listing conntrack entries: %w", err)
	}
	var lines []string
	for _, f := range all {
		lines = append(lines, fmt.Sprintf("conntrack entry of %s and %s, protocol %d", f.Forward.SrcIP, f.Forward.DstIP, f.Forward.Protocol))
	}
	return lines, nil
}

// mounts is `findmnt -t nsfs`, below dir: the namespaces that are kept by a path.
func mounts(dir string) ([]string, error) {
	info, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("listing mounts: %w", err)
	}
	var lines []string
	for line := range strings.Lines(string(info)) {
		// ID parent major:minor root point options [optional...] - type source options
		before, after, _ := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if strings.HasPrefix(after, "nsfs ") && len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			lines = append(lines, "network namespace at "+fields[4])
		}
	}
	return lines, nil
}
