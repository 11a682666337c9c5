package demo

import (
	"slices"
	"strings"

	"github.com/berth-net/berth/conform/oracle"
)

// look lists what attaching pods changes in a network namespace, straight from the kernel and
// with nothing of Berth's. The list leaves out whether the node forwards.
func look() (oracle.State, error) {
	all, err := oracle.Look()
	return all.Without("sysctl"), err
}

// changed returns what was added, and what is missing. An nftables table counts once, with
// all that is in it.
func changed(before, after oracle.State) (found []string) {
	for line := range strings.Lines(before.Diff(after)) {
		sign, what := line[0], strings.TrimSpace(line[1:])
		if words := strings.Fields(what); words[0] == "nft" {
			what = "nftables table " + words[3] // nft table FAMILY NAME ...
		}
		if sign == '-' {
			what += " is gone"
		}
		found = append(found, what)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// mounts lists the network namespaces that a mount below dir keeps.
func mounts(dir string) ([]string, error) {
	all, err := oracle.Mounts()
	return changed(all.But([]string{"mount " + dir + "/"}), all), err
}
