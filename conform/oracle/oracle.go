// Package oracle reads, straight from the kernel, all that a network plugin could
// leave behind on a node. It knows nothing of any plugin, Berth's included.
package oracle

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	nft "github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// State is what the oracle saw: one line of text for each thing, sorted. The first word of
// a line is its section: link, address, route, rule, neighbour, qdisc, nft, iptables, ipset,
// conntrack, sysctl, mount, file, or file-content; LookAll, Processes and SharedMemory have more.
type State struct{ lines []string }

// String returns the lines.
func (s State) String() string { return strings.Join(s.lines, "\n") }

// Diff returns what has changed from s to after: "-" before a line that only s
// has, and "+" before a line that only after has. If s equals after, it returns "".
func (s State) Diff(after State) string {
	var (
		out  strings.Builder
		a, b = s.lines, after.lines
	)
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0] < b[0]:
			fmt.Fprintf(&out, "-%s\n", a[0])
			a = a[1:]
		case len(a) == 0 || b[0] < a[0]:
			fmt.Fprintf(&out, "+%s\n", b[0])
			b = b[1:]
		default:
			a, b = a[1:], b[1:]
		}
	}
	return out.String()
}

// And returns the lines of s and the lines of other in one state.
func (s State) And(other State) State {
	return State{slices.Sorted(slices.Values(slices.Concat(s.lines, other.lines)))}
}

// Without returns s without some sections, such as conntrack, whose entries
// come and go by themselves.
func (s State) Without(sections ...string) State {
	return s.filter(func(section string) bool { return !slices.Contains(sections, section) })
}

// Only returns only these sections of s.
func (s State) Only(sections ...string) State {
	return s.filter(func(section string) bool { return slices.Contains(sections, section) })
}

func (s State) filter(keep func(section string) bool) State {
	var kept State
	for _, line := range s.lines {
		if section, _, _ := strings.Cut(line, " "); keep(section) {
			kept.lines = append(kept.lines, line)
		}
	}
	return kept
}

// Below returns s, a state that Files has read, with whole paths. dir is the folder from which Files
// read s.
func (s State) Below(dir string) State {
	var below State
	for _, line := range s.lines {
		below.lines = append(below.lines, strings.Replace(line, "file ", "file "+strings.TrimSuffix(dir, "/")+"/", 1))
	}
	return below
}

// But returns s without the lines that begin with one of the prefixes.
func (s State) But(prefixes []string) State {
	return State{slices.DeleteFunc(slices.Clone(s.lines), func(line string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) })
	})}
}

// Beginning returns the lines of s that begin with prefix.
func (s State) Beginning(prefix string) State {
	return State{slices.DeleteFunc(slices.Clone(s.lines), func(line string) bool { return !strings.HasPrefix(line, prefix) })}
}

// ruleNumber matches the line of an nftables rule up to its place in its chain.
var ruleNumber = regexp.MustCompile(`^(nft .*? rule) \d{3} `)

// identity returns the part of a line that says which thing the line is about. The rest of the line
// may change when other things change: a bridge's flags and MAC change with its ports, and a rule's
// place changes with the rules before the rule. A file's mode may change, too.
func identity(line string) string {
	f := strings.Fields(line)
	switch {
	case f[0] == "link":
		return strings.Join(f[:3], " ")
	case f[0] == "address":
		return strings.Join(f[:4], " ")
	case f[0] == "file":
		return strings.Join(f[:len(f)-1], " ")
	}
	return ruleNumber.ReplaceAllString(line, "$1 ")
}

// follows reports whether a line is about something that the kernel makes for something
// else (its own routes for an address; link-local addresses for a link, once nobody else
// has them) or that ends by itself (a tracked flow).
func follows(line string) bool {
	return strings.HasPrefix(line, "conntrack ") || strings.HasPrefix(line, "address fe80:") ||
		strings.HasPrefix(line, "route ") && strings.Contains(line, " proto 2 ")
}

// Deliberate returns s without the lines for which follows is true: the kernel makes or ends their
// things by itself, and not always at once.
func (s State) Deliberate() State {
	return State{slices.DeleteFunc(slices.Clone(s.lines), follows)}
}

// New returns the identities of things that are in after and not in s: "link veth1 veth"
// for a link in any state. A link, address, file or nftables rule that only changed is not new. In
// the other sections, such as sysctl and setting, a line that changed is new. New leaves out the lines of follows,
// and those about properties of a link that was not in s: the link itself is new.
func (s State) New(after State) []string {
	had, links := map[string]int{}, map[string]bool{}
	for _, line := range s.lines {
		had[identity(line)]++
		if f := strings.Fields(line); f[0] == "link" {
			links[f[1]] = true
		}
	}
	var found []string
	for _, line := range after.lines {
		id := identity(line)
		link, property := linkOf(line)
		if had[id]--; had[id] < 0 && !follows(line) && (!property || links[link]) {
			found = append(found, id)
		}
	}
	return found
}

// reader reads a section.
type reader struct {
	section string
	read    func() ([]string, error)
}

// readers are the functions that read the sections of Look.
var readers = []reader{
	{"link", links}, {"address", addresses}, {"neighbour", neighbours}, {"qdisc", qdiscs}, {"route", routes}, {"rule", rules},
	{"nft", nftables}, {"iptables", iptables}, {"ipset", ipsets}, {"conntrack", conntrack}, {"sysctl", sysctls},
}

// Look reads what is in the network namespace of the calling thread. It leaves out things that
// change by themselves: counters, timers, learnt neighbours, indexes and handles.
func Look() (State, error) { return look(readers) }

// LookAt is Look for some sections only.
func LookAt(sections ...string) (State, error) {
	return look(slices.DeleteFunc(slices.Clone(readers), func(r reader) bool { return !slices.Contains(sections, r.section) }))
}

func look(by []reader) (State, error) {
	var s State
	for _, r := range by {
		lines, err := List(r.read)
		if err != nil {
			return State{}, err
		}
		s.lines = append(s.lines, lines...)
	}
	slices.Sort(s.lines)
	return s, nil
}

// LookAtTable reads one nftables table of family inet, and the one of family bridge of that name.
func LookAtTable(name string) (State, error) {
	lines, err := List(func() ([]string, error) {
		return nftablesOf(func(t *nft.Table) bool {
			return t.Name == name && (t.Family == nft.TableFamilyINet || t.Family == nft.TableFamilyBridge)
		})
	})
	slices.Sort(lines)
	return State{lines}, err
}

// Mounts reads which namespaces have a path, in the mount namespace of the calling
// thread.
func Mounts() (State, error) {
	lines, err := mounts()
	slices.Sort(lines)
	return State{lines}, err
}

// List calls read, a reader of the kernel's state, again if the state changed while read read
// it. The kernel marks such a dump with NLM_F_DUMP_INTR. Package netlink then returns
// ErrDumpInterrupted, with a list that may be neither the old state nor the new state.
func List[T any](read func() ([]T, error)) (all []T, err error) {
	for range 100 {
		all, err = read()
		moving := errors.Is(err, netlink.ErrDumpInterrupted) || errors.Is(err, unix.EINTR) ||
			errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV)
		if !moving {
			return all, err
		}
	}
	return nil, err
}

// absent reports whether an error says that the kernel lacks a feature. Such a feature cannot hold
// anything that was left.
func absent(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) ||
		errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// Files returns a line for everything below dir, with type and mode, without contents and sizes. If
// dir does not exist, Files returns nothing.
func Files(dir string) (State, error) {
	var s State
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile, or dir itself
			return nil
		}
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		s.lines = append(s.lines, fmt.Sprintf("file %s %s", rel, info.Mode()))
		return err
	})
	slices.Sort(s.lines)
	return s, err
}
