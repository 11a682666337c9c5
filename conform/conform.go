// Package conform judges CNI plugins by the specification (0.4.0, 1.0.0 and 1.1.0), and
// looks for what the plugins leave behind. It needs no more than a configuration list and the
// plugins' programs, and judges from outside: the package plays the runtime, and makes a fresh
// network namespace as the node for each check.
//
// A program first calls Enter, which runs the program again in namespaces of its own, and
// then Run.
package conform

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Options say what Run judges, and how.
type Options struct {
	BinDir    string         // where the plugins' programs are, and those that they delegate to
	Conf      string         // path of the network configuration list (CNI 1.1, section 1)
	Others    []string       // paths of lists of the same plugins for other versions of CNI; in a version without a list, Conf counts
	StateDirs []string       // folders in which the plugins, or their daemons, keep files; nil: DefaultStateDir
	HookDir   string         // programs "start" and "stop" of a daemon that the plugins need; "": none
	Run       *regexp.Regexp // which checks; nil: all

	Ifname  string        // the interface's name in a pod; "": DefaultIfname
	Timeout time.Duration // how long a plugin may take for a call; 0: DefaultTimeout
	Grace   time.Duration // how long a pod's things may stay after DEL; 0: DefaultGrace
	Points  int           // at how many points a plugin is killed in a verb; 0: DefaultPoints
	Churn   int           // how many pods come and go in the churn check; 0: DefaultChurn
	Times   int           // how often a check is judged whose outcome is bad; 0: once

	Progress func(Result)        // called with each result as it comes; may be nil
	Repeat   func(string) string // returns the command that repeats the checks whose names match a pattern; may be nil

	born func() error // of tests: called in the network namespace of each new pod, for what another kernel puts there; may be nil
}

// The values that zero values of Options stand for.
const (
	DefaultTimeout = 30 * time.Second
	DefaultGrace   = 5 * time.Second
	DefaultPoints  = 12
	DefaultChurn   = 500
)

// DefaultIfname is the name that pods' interfaces get.
const DefaultIfname = "net0"

// DefaultStateDir is where the reference plugins keep files.
const DefaultStateDir = "/var/lib/cni"

// Check is one obligation, or one way to leak.
type Check struct {
	Name string `json:"check"` // "verb/what" or "leak/what": it stays the same in later versions of the suite
	Spec string `json:"spec"`  // the section of the specification, or what else obliges
	Says string `json:"says"`  // what the section says

	Level Level `json:"level"`           // how far that binds. Single findings of a check may be of another level
	Early Level `json:"early,omitempty"` // how far it binds in versions below 1.0.0, if that is not Level

	// Each says that the check is run once for each version that the plugins speak, and not
	// only for the list's own. Since is the first version that the check is about.
	Each  bool   `json:"each,omitempty"`
	Since string `json:"since,omitempty"`
	// Needs are the checks that have to hold before the suite judges this check: otherwise this
	// check would find the same fault again, or has nothing to go by.
	Needs []string `json:"needs,omitempty"`

	Obligations []Obligation `json:"obligations,omitempty"` // what the check judges; none if it is only the suite's own. Checks fills it in

	run   func(*T)
	usual bool // run asks T.usual
}

// Checks returns all checks in the order in which they run.
func Checks() []Check {
	all := slices.Clone(checks)
	for i := range all {
		all[i].Obligations = obligationsOf(all[i].Name)
	}
	return all
}

// Run judges what the options name. Its error is about the options or the machine; the faults of
// the plugins are in the report. When the context ends, Run returns the context's
// error, with a report of the checks that had ended.
func Run(ctx context.Context, o Options) (*Report, error) {
	s, err := newSuite(ctx, o)
	if err != nil {
		return nil, err
	}
	for _, c := range checks {
		for _, v := range s.versionsOf(c) {
			name := s.nameOf(c, v)
			if o.Run != nil && !o.Run.MatchString(name) {
				continue
			}
			s.try(ctx, c, v, name)
			if err := ctx.Err(); err != nil {
				s.report.Took, s.report.Interrupted = time.Since(s.report.When), true
				return &s.report, err
			}
		}
	}
	if len(s.report.Results) == 0 {
		return nil, fmt.Errorf("no check has a name that matches %s", o.Run)
	}
	s.report.Took = time.Since(s.report.When)
	return &s.report, nil
}

// versionsOf returns the versions for which a check is run.
func (s *suite) versionsOf(c Check) []string {
	if !c.Each {
		return []string{s.list.Version}
	}
	var versions []string
	for _, v := range judged {
		if slices.Contains(s.speak, v) && !older(v, c.Since) {
			versions = append(versions, v)
		}
	}
	if len(versions) == 0 {
		return []string{s.list.Version}
	}
	return versions
}

func (s *suite) nameOf(c Check, version string) string {
	if c.Each {
		return c.Name + "@" + version
	}
	return c.Name
}

// judged are the versions whose obligations are checked.
var judged = []string{"0.4.0", "1.0.0", "1.1.0"}

// older compares versions; "" is older than all.
func older(a, b string) bool { return slices.Compare(numbers(a), numbers(b)) < 0 }

func numbers(version string) []int {
	var n [3]int
	_, _ = fmt.Sscanf(version, "%d.%d.%d", &n[0], &n[1], &n[2]) // missing numbers are 0
	return n[:]
}

// try runs one check on a node of its own. If the context ends during the check, the check has no
// result: what the suite saw then is not the plugin's fault.
func (s *suite) try(ctx context.Context, c Check, version, name string) {
	began := time.Now()
	once := func() *T {
		t := &T{suite: s, ctx: ctx, Version: version, level: c.in(version)}
		t.do(c)
		t.outcome = cmp.Or(t.outcome, Pass)
		return t
	}
	missing, why := s.missing(c, version)
	t := &T{outcome: Unsupported, seen: []string{why}}
	if why == "" {
		t = once()
		t.outcome, t.notes = rejudged(t.outcome, t.notes, s.Times, func() Outcome { return once().outcome })
	}
	if ctx.Err() != nil {
		return
	}
	r := Result{
		Check: name, Level: cmp.Or(t.worst, c.in(version)), Spec: c.Spec, Says: c.Says,
		Outcome: t.outcome, Needed: missing, Seen: t.seen, Notes: t.notes, Took: time.Since(began),
	}
	if s.Repeat != nil && (r.Outcome.Bad() || r.Outcome == Flaky) {
		r.Repeat = s.Repeat("^" + regexp.QuoteMeta(name) + "$")
	}
	s.report.Results = append(s.report.Results, r)
	if s.Progress != nil {
		s.Progress(r)
	}
}

// rejudged judges a check whose outcome is bad anew, until it has been judged `times` times. The outcome is Flaky if it is bad at some times only, and a note
// says at how many.
func rejudged(first Outcome, notes []string, times int, judge func() Outcome) (Outcome, []string) {
	if !first.Bad() || times < 2 {
		return first, notes
	}
	bad := 1
	for range times - 1 {
		if judge().Bad() {
			bad++
		}
	}
	if bad == times {
		return first, notes
	}
	return Flaky, append(notes, fmt.Sprintf("%s at %d of %d times", first, bad, times))
}

// missing returns why a check cannot be judged in a version, or "". If the reason is that
// another check, which this one needs directly or indirectly, did not hold in the version,
// missing returns that check's name, too.
func (s *suite) missing(c Check, version string) (check, why string) {
	if older(version, c.Since) {
		return "", fmt.Sprintf("the list's version is %s; CNI has had this since %s", version, c.Since)
	}
	for _, need := range needed(c) {
		for _, r := range s.report.Results {
			base, in, each := strings.Cut(r.Check, "@")
			if base == need && base == "basic/attach" && r.Outcome == Unsupported {
				return "", "not judged: " + strings.Join(r.Seen, "; ")
			}
			if base == need && r.Outcome.Bad() && (!each || in == version) {
				return r.Check, fmt.Sprintf("not judged: it needs %s, which does not hold (%s)", r.Check, r.Outcome)
			}
		}
	}
	return "", ""
}

// needed returns the checks that a check needs, directly or indirectly.
func needed(c Check) []string {
	all := slices.Clone(c.Needs)
	for i := 0; i < len(all); i++ {
		for _, other := range checks {
			if other.Name != all[i] {
				continue
			}
			for _, need := range other.Needs {
				if !slices.Contains(all, need) {
					all = append(all, need)
				}
			}
		}
	}
	return all
}
