package conform

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// suite is one call of Run: the list that Run judges, and what Run has found out about the list so
// far.
type suite struct {
	Options
	list    *List            // of Options.Conf
	others  map[string]*List // of Options.Others, by their versions
	speak   []string         // versions that every plugin of the list speaks
	boots   int
	second  string   // "yes": two pods can be attached at the same time; "": not known yet; else why they cannot
	usual   *usual   // nil: not known yet
	unusual []string // why it is not known
	room    int      // the list can attach at least this number of pods; 0: not known
	report  Report
}

// newSuite checks the options and asks the plugins for their versions.
func newSuite(ctx context.Context, o Options) (*suite, error) {
	o.fill()
	list, err := readList(o.Conf)
	if err != nil {
		return nil, err
	}
	s := &suite{Options: o, list: list, others: map[string]*List{}}
	for _, path := range o.Others {
		if err := s.readOther(path); err != nil {
			return nil, err
		}
	}
	if err := s.place(); err != nil {
		return nil, err
	}
	s.report = Report{
		Suite: Version, Parameters: s.parameters(), Privilege: privilege(),
		Conf: o.Conf, Network: list.Name, Version: list.Version, When: time.Now(), Kernel: kernelVersion(),
	}
	if err := s.askVersions(ctx); err != nil {
		return nil, err
	}
	return s, s.wantSpoken()
}

// readOther reads one of Options.Others.
func (s *suite) readOther(path string) error {
	l, err := readList(path)
	if err != nil {
		return err
	}
	types := func(l *List) (all []string) {
		for _, p := range l.Plugins {
			all = append(all, p.Type)
		}
		return all
	}
	switch {
	case l.Version == s.list.Version || s.others[l.Version] != nil:
		return fmt.Errorf("%s: another list has cniVersion %s, too; each further list is for a version of its own", path, l.Version)
	case !slices.Equal(types(l), types(s.list)):
		return fmt.Errorf("%s: it has the plugins %s, and %s has %s; expected the same plugins in another version of CNI", path, strings.Join(types(l), ", "), s.Conf, strings.Join(types(s.list), ", "))
	}
	s.others[l.Version] = l
	return nil
}

// listOf returns the list by which the suite judges in a version.
func (s *suite) listOf(version string) *List {
	if l := s.others[version]; l != nil {
		return l
	}
	return s.list
}

func (o *Options) fill() {
	if o.StateDirs == nil {
		o.StateDirs = []string{DefaultStateDir}
	}
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.Grace = cmp.Or(o.Grace, DefaultGrace)
	o.Points = cmp.Or(o.Points, DefaultPoints)
	o.Churn = cmp.Or(o.Churn, DefaultChurn)
	o.Times = max(o.Times, 1)
	o.Ifname = cmp.Or(o.Ifname, DefaultIfname)
}

// parameters returns what the report says of the options.
func (s *suite) parameters() Parameters {
	p := Parameters{
		BinDir: s.BinDir, Others: s.Others, StateDirs: s.StateDirs, HookDir: s.HookDir, Ifname: s.Ifname,
		Timeout: s.Timeout, Grace: s.Grace, Points: s.Points, Churn: s.Churn, Times: s.Times,
	}
	if s.Run != nil {
		p.Run = s.Run.String()
	}
	return p
}

// privilege says as whom the suite judges: on behalf of the machine's root, or in a user namespace.
func privilege() string {
	var inner, outer, count uint64
	raw, err := os.ReadFile("/proc/self/uid_map")
	if _, bad := fmt.Sscan(string(raw), &inner, &outer, &count); err == nil && bad == nil && (outer != 0 || count < 1<<32-1) {
		return "user namespace"
	}
	return "root"
}

// place makes the paths of the options absolute. It returns an error if the suite cannot judge with a
// path: a folder or a program is missing, or a node would hide or empty the folder.
func (s *suite) place() error {
	for _, p := range []*string{&s.BinDir, &s.HookDir} {
		if *p == "" {
			continue
		}
		what := "plugins"
		if p == &s.HookDir {
			what = "hooks"
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		if within(abs, volatile) {
			return fmt.Errorf("%s: the suite cannot use what is in %s, because each node has its own", abs, volatile)
		}
		info, err := os.Stat(abs)
		if err != nil {
			return fmt.Errorf("the folder of the %s: %w", what, err)
		}
		if !info.IsDir() {
			return fmt.Errorf("%s is not a folder", abs)
		}
		*p = abs
	}
	for i, dir := range s.StateDirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return err
		}
		if within(abs, "/proc") || within(abs, "/sys") || within(abs, "/dev") {
			return fmt.Errorf("%s cannot be a state folder: plugins keep no files there", abs)
		}
		if abs == "/" || within(s.BinDir, abs) || s.HookDir != "" && within(s.HookDir, abs) {
			return fmt.Errorf("%s cannot be a state folder: it has more than the plugins' state, and the suite would empty it for each check", abs)
		}
		s.StateDirs[i] = abs
	}
	if n := s.Ifname; len(n) > longestIfname || n == "lo" || n == "." || n == ".." || strings.ContainsAny(n, "/: \t\n") {
		return fmt.Errorf("interface name %.40q: expected a name of up to %d bytes that an interface of a pod can have, but lo", n, longestIfname)
	}
	for _, p := range s.list.Plugins {
		if strings.Contains(p.Type, "/") {
			return fmt.Errorf("%s: type %q cannot be a program's name", s.Conf, p.Type)
		}
		if err := executable(filepath.Join(s.BinDir, p.Type)); err != nil {
			return fmt.Errorf("plugin %w", err)
		}
	}
	return s.placeHooks()
}

// longestIfname is one byte less than the kernel takes: the suite gives a container a second interface, with a longer name.
const longestIfname = 14

// placeHooks returns an error if the folder of hooks has no hook, or has a hook that cannot be executed.
func (s *suite) placeHooks() error {
	if s.HookDir == "" {
		return nil
	}
	there := 0
	for _, name := range []string{"start", "stop"} {
		err := executable(filepath.Join(s.HookDir, name))
		switch {
		case err == nil:
			there++
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("hook %w", err)
		}
	}
	if there == 0 {
		return fmt.Errorf(`%s has neither a program "start" nor "stop"`, s.HookDir)
	}
	return nil
}

// executable returns an error if a program cannot be executed.
func executable(path string) error {
	switch err := unix.Access(path, unix.X_OK); {
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%s is not executable: see chmod +x", path)
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// askVersions executes VERSION of each plugin. If a plugin does not answer, the suite tries only
// the list's own version, and the checks judge the missing answer.
func (s *suite) askVersions(ctx context.Context) error {
	n, err := s.newNode(ctx)
	if err != nil {
		return err
	}
	common := map[string]int{}
	for i, p := range s.list.Plugins {
		a, err := n.Exec(ctx, Call{Type: p.Type, Verb: "VERSION", Stdin: s.list.Conf(i, nil)})
		if err != nil {
			return errors.Join(err, n.close(ctx))
		}
		var answer struct {
			Supported []string `json:"supportedVersions"`
		}
		_ = json.Unmarshal(a.Stdout, &answer)
		for _, v := range answer.Supported {
			common[v]++
		}
		s.report.Plugins = append(s.report.Plugins, PluginInfo{p.Type, answer.Supported})
	}
	for _, v := range judged {
		if common[v] == len(s.list.Plugins) {
			s.speak = append(s.speak, v)
		}
	}
	return n.close(ctx)
}

// wantSpoken returns an error if a plugin does not speak the version of one of the lists: a runtime could not use that list, and no plugin is to
// blame. What a plugin that names no version speaks, the checks find out.
func (s *suite) wantSpoken() error {
	lists := []*List{s.list}
	for _, version := range slices.Sorted(maps.Keys(s.others)) {
		lists = append(lists, s.others[version])
	}
	for _, l := range lists {
		for _, p := range s.report.Plugins {
			if len(p.Versions) > 0 && !slices.Contains(p.Versions, l.Version) {
				return fmt.Errorf("%s: cniVersion is %.20q, and %s speaks %s; expected a version that all plugins of the list speak", l.Path, l.Version, p.Type, strings.Join(p.Versions, ", "))
			}
		}
	}
	return nil
}

const bootID = "/proc/sys/kernel/random/boot_id"

// anotherBoot gives the node another boot id, as a reboot does.
func (s *suite) anotherBoot() error {
	s.boots++
	own := filepath.Join(suiteDir, "boot_id")
	if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
		return err
	}
	id := fmt.Sprintf("c0f0a3b0-0000-4000-8000-%012x\n", s.boots)
	if err := os.WriteFile(own, []byte(id), 0o444); err != nil {
		return err
	}
	if s.boots > 1 {
		return nil // the file is mounted already
	}
	// mount --bind /run/conform/boot_id /proc/sys/kernel/random/boot_id
	if err := unix.Mount(own, bootID, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("making another boot id: %w", err)
	}
	return nil
}

func kernelVersion() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
