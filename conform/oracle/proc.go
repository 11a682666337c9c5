package oracle

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// conntrack is `conntrack -L`, both families, without timers, states and
// counters. Each entry has a line, so that equal tuples of several zones make several lines.
func conntrack() ([]string, error) {
	// Each request walks the table of the whole machine, which takes up to 0.2 s. So there
	// is one request for both families, and none if the namespace has no entries.
	if count, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count"); err == nil && string(count) == "0\n" {
		return nil, nil
	}
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_UNSPEC)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing conntrack entries: %w", err)
	}
	var lines []string
	for _, f := range flows {
		lines = append(lines, fmt.Sprintf("conntrack proto %d %s reply %s", f.Forward.Protocol, tuple(f.Forward), tuple(f.Reverse)))
	}
	return lines, nil
}

func tuple(t netlink.IPTuple) string {
	return fmt.Sprintf("src %s dst %s sport %d dport %d", t.SrcIP, t.DstIP, t.SrcPort, t.DstPort)
}

// sysctls is `sysctl net.ipv4 net.ipv6`, limited to sysctls about forwarding packets and
// making addresses. It leaves out the sysctls of single links other than lo, which go with the links.
func sysctls() ([]string, error) {
	const root = "/proc/sys/net"
	files := []string{root + "/ipv4/ip_forward", root + "/ipv4/ip_nonlocal_bind", root + "/ipv6/ip_nonlocal_bind"}
	for _, pattern := range []string{
		"/ipv[46]/conf/all/*", "/ipv[46]/conf/default/*", "/ipv[46]/conf/lo/*",
		"/ipv[46]/neigh/default/gc_thresh*",
	} {
		matches, err := filepath.Glob(root + pattern)
		if err != nil {
			return nil, err
		}
		files = append(files, matches...)
	}
	var lines []string
	for _, file := range files {
		value, err := os.ReadFile(file)
		if err != nil { // there is no IPv6, or a stable_secret is not set
			continue
		}
		name := strings.TrimPrefix(file, root+"/")
		lines = append(lines, fmt.Sprintf("sysctl %s = %s", name, strings.TrimSpace(string(value))))
	}
	return lines, nil
}

// mounts is `findmnt -t nsfs`: the namespaces that have a path.
func mounts() ([]string, error) {
	info, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	var lines []string
	for line := range strings.Lines(string(info)) {
		// ID parent major:minor root point options [optional...] - type source options
		before, after, _ := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if strings.HasPrefix(after, "nsfs ") && len(fields) > 4 {
			lines = append(lines, fmt.Sprintf("mount %s %s", fields[4], fields[3]))
		}
	}
	return lines, nil
}
