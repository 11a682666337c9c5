package oracle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

// legacy are the address families of iptables' own backend in the kernel (not of nftables), each with
// its file in /proc and its program. The function nftables sees what iptables makes in nftables.
var legacy = []struct{ names, save string }{
	{"ip_tables_names", "iptables-legacy-save"},
	{"ip6_tables_names", "ip6tables-legacy-save"},
}

// iptables is `iptables-legacy-save` and `ip6tables-legacy-save`, without counters. If
// there are tables but the program is not installed, iptables returns only the tables' names.
func iptables() ([]string, error) {
	var lines []string
	for _, l := range legacy {
		tables, err := os.ReadFile("/proc/thread-self/net/" + l.names)
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(tables) == 0 {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("listing iptables tables: %w", err)
		}
		family := strings.TrimSuffix(l.names, "_tables_names")
		path, err := exec.LookPath(l.save)
		if err != nil {
			for t := range strings.FieldsSeq(string(tables)) {
				lines = append(lines, fmt.Sprintf("iptables %s %s (its rules cannot be seen without %s)", family, t, l.save))
			}
			continue
		}
		saved, err := exec.Command(path).Output()
		if err != nil {
			return nil, fmt.Errorf("running %s: %w", path, err)
		}
		lines = append(lines, savedLines(family, string(saved))...)
	}
	return lines, nil
}

// counters matches the counters of a chain's policy in the output of iptables-save.
var counters = regexp.MustCompile(` \[\d+:\d+\]$`)

// savedLines reads the output of iptables-save.
func savedLines(family, saved string) []string {
	var lines []string
	table := ""
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#' || line == "COMMIT":
		case line[0] == '*':
			table = line[1:]
			lines = append(lines, fmt.Sprintf("iptables %s %s", family, table))
		default:
			lines = append(lines, fmt.Sprintf("iptables %s %s %s", family, table, counters.ReplaceAllString(line, "")))
		}
	}
	return lines
}
