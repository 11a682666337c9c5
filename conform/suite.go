package conform

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// suite is one call of Run: the list that Run judges, and what Run has found out about the list so
// far.
type suite struct {
	Options
	list   *List
	speak  []string // versions that every plugin of the list speaks
	boots  int
	second string // "yes": two pods can be attached at the same time; "": not known yet; else why they cannot
	room   int    // the list can attach at least this number of pods; 0: not known
	report Report
}

// newSuite checks the options and asks the plugins for their versions.
func newSuite(ctx context.Context, o Options) (*suite, error) {
	o.fill()
	list, err := readList(o.Conf)
	if err != nil {
		return nil, err
	}
	s := &suite{Options: o, list: list}
	if err := s.place(); err != nil {
		return nil, err
	}
	s.report = Report{Conf: o.Conf, Network: list.Name, Version: list.Version, When: time.Now(), Kernel: kernelVersion()}
	if err := s.askVersions(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func (o *Options) fill() {
	if o.StateDirs == nil {
		o.StateDirs = []string{DefaultStateDir}
	}
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.Grace = cmp.Or(o.Grace, DefaultGrace)
	o.Points = cmp.Or(o.Points, DefaultPoints)
	o.Churn = cmp.Or(o.Churn, DefaultChurn)
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

// anotherBoot gives the node another boot id, as a reboot does.
func (s *suite) anotherBoot() error {
	const bootID = "/proc/sys/kernel/random/boot_id"
	s.boots++
	own := filepath.Join(volatile, "conform", "boot_id")
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
