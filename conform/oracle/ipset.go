package oracle

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// ipsets is `ipset list`, without counters and timers.
func ipsets() ([]string, error) {
	sets, err := netlink.IpsetListAll()
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing ipsets: %w", err)
	}
	var lines []string
	for _, s := range sets {
		lines = append(lines, fmt.Sprintf("ipset %s %s family %d", s.SetName, s.TypeName, s.Family))
		for _, e := range s.Entries {
			line := fmt.Sprintf("ipset %s element", s.SetName)
			if e.IP != nil {
				line += fmt.Sprintf(" %s/%d", e.IP, e.CIDR)
			}
			if e.IP2 != nil {
				line += fmt.Sprintf(" %s/%d", e.IP2, e.CIDR2)
			}
			if e.Protocol != nil && e.Port != nil {
				line += fmt.Sprintf(" proto %d port %d", *e.Protocol, *e.Port)
			}
			if e.Mark != nil {
				line += fmt.Sprintf(" mark %#x", *e.Mark)
			}
			lines = append(lines, fmt.Sprintf("%s mac %q dev %q comment %q", line, e.MAC, e.IFace, e.Comment))
		}
	}
	return lines, nil
}
