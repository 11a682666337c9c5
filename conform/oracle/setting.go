package oracle

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// settings is what of a link a plugin can change while the link stays: a line for each property. It leaves
// out what counts, and what the kernel derives from other things, such as carrier, a bridge's MAC, and the promiscuity of a link that has
// macvlans: they go when the kernel likes, after their namespace.
func settings() ([]string, error) {
	all, name, err := namedLinks()
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, l := range all {
		a := l.Attrs()
		add := func(property, value string) {
			lines = append(lines, fmt.Sprintf("setting %s %s %s", a.Name, property, value))
		}
		add("mtu", strconv.Itoa(a.MTU))
		add("state", flag(a.RawFlags, unix.IFF_UP, "up", "down"))
		add("promiscuity", flag(a.RawFlags, unix.IFF_PROMISC, "on", "off"))
		add("allmulticast", flag(a.RawFlags, unix.IFF_ALLMULTI, "on", "off"))
		add("arp", flag(a.RawFlags, unix.IFF_NOARP, "off", "on"))
		add("queue", strconv.Itoa(a.TxQLen))
		add("group", strconv.FormatUint(uint64(a.Group), 10))
		add("alias", strconv.Quote(a.Alias))
		add("master", strconv.Quote(name[a.MasterIndex]))
		add("xdp", strconv.FormatBool(a.Xdp != nil && a.Xdp.Attached))
		for _, other := range a.AltNames {
			add("altname", other)
		}
		if !slices.Contains([]string{"bridge", "bond", "team"}, l.Type()) { // these take the MAC of a port
			add("mac", orNone(a.HardwareAddr))
		}
	}
	return lines, nil
}

// linkOf returns the link whose property a line is about. Such a line says nothing of its own about a link
// that came or went.
func linkOf(line string) (link string, ok bool) {
	section, rest, _ := strings.Cut(line, " ")
	switch section {
	case "setting", "filter", "class", "fdb", "multicast", "program":
		link, _, _ = strings.Cut(rest, " ")
		return link, true
	case "sysctl": // sysctl ipv4/conf/LINK/forwarding = 1
		f := strings.Split(rest, "/")
		if len(f) > 3 && (f[1] == "conf" || f[1] == "neigh") && f[2] != "all" && f[2] != "default" {
			return f[2], true
		}
	}
	return "", false
}
