package conform

import "time"

// Outcome is how a check ended.
type Outcome string

// The outcomes. Unsupported is no fault: the thing that the check is about does not exist.
const (
	Pass        Outcome = "pass"
	Fail        Outcome = "fail"
	Leak        Outcome = "leak"
	Flaky       Outcome = "flaky" // bad, and at another time not: see Options.Times
	Unsupported Outcome = "unsupported"
)

// Bad reports whether an outcome is a fault of a plugin that comes each time.
func (o Outcome) Bad() bool { return o == Fail || o == Leak }

// Result is the outcome of one check.
type Result struct {
	Check   string        `json:"check"` // the check's name, with "@version" if the suite runs the check for each version
	Level   Level         `json:"level"` // of the strictest finding; without any, of the check
	Spec    string        `json:"spec"`
	Says    string        `json:"says"`
	Outcome Outcome       `json:"outcome"`
	Needed  string        `json:"needed,omitempty"` // the bad check that this one needs, if it was not judged for that reason
	Seen    []string      `json:"seen,omitempty"`   // what was found, or why the check is unsupported
	Notes   []string      `json:"notes,omitempty"`  // what is worth knowing, but no fault
	Repeat  string        `json:"repeat,omitempty"` // the command that repeats just this check
	Known   *Known        `json:"known,omitempty"`  // why the outcome is expected to be bad; nil: it is not
	Took    time.Duration `json:"tookNs"`
}

// Report has the results of Run, and what Run has judged.
type Report struct {
	Suite      string     `json:"suite"` // Version
	Parameters Parameters `json:"parameters"`
	Privilege  string     `json:"privilege"` // "root", or "user namespace"

	Interrupted bool    `json:"interrupted,omitempty"` // some checks have not run
	Unexpected  []Known `json:"unexpectedPasses,omitempty"`

	Conf    string        `json:"conf"` // the list's path
	Network string        `json:"network"`
	Version string        `json:"cniVersion"`
	Plugins []PluginInfo  `json:"plugins"`
	Kernel  string        `json:"kernel"`
	When    time.Time     `json:"when"`
	Took    time.Duration `json:"tookNs"`
	Results []Result      `json:"results"`
}

// Version is that of the suite: MINOR grows with checks and with what they find, MAJOR if reports can no longer be read as before.
const Version = "0.2.0"

// Parameters are what a run was given.
type Parameters struct {
	BinDir    string        `json:"binDir"`        // the folder of the plugins' programs
	Run       string        `json:"run,omitempty"` // which checks, by a regular expression; "": all
	Others    []string      `json:"otherConfs,omitempty"`
	StateDirs []string      `json:"stateDirs"`
	HookDir   string        `json:"hookDir,omitempty"`
	Ifname    string        `json:"ifname"`
	Timeout   time.Duration `json:"timeoutNs"`
	Grace     time.Duration `json:"graceNs"`
	Points    int           `json:"points"`
	Churn     int           `json:"churn"`
	Times     int           `json:"repeat"`
}

// PluginInfo is a plugin of the list, with the versions that it says it speaks.
type PluginInfo struct {
	Type     string   `json:"type"`
	Versions []string `json:"versions"`
}

// Count returns how many results have an outcome.
func (r *Report) Count(o Outcome) int {
	n := 0
	for _, one := range r.Results {
		if one.Outcome == o {
			n++
		}
	}
	return n
}

// NotJudged returns how many checks are unsupported only because a check that they need has a bad
// outcome.
func (r *Report) NotJudged() int {
	n := 0
	for _, one := range r.Results {
		if one.Needed != "" {
			n++
		}
	}
	return n
}

// Clean reports whether no result has the outcome Fail, Leak or Flaky.
func (r *Report) Clean() bool { return r.Count(Fail)+r.Count(Leak)+r.Count(Flaky) == 0 }
