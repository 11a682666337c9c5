package conform

import "time"

// Outcome is how a check ended.
type Outcome string

// The outcomes. Unsupported is no fault: the thing that the check is about does not exist.
const (
	Pass        Outcome = "pass"
	Fail        Outcome = "fail"
	Leak        Outcome = "leak"
	Unsupported Outcome = "unsupported"
)

// Bad reports whether an outcome is a fault of a plugin.
func (o Outcome) Bad() bool { return o == Fail || o == Leak }

// Result is the outcome of one check.
type Result struct {
	Check   string        `json:"check"` // the check's name, with "@version" if the suite runs the check for each version
	Spec    string        `json:"spec"`
	Says    string        `json:"says"`
	Outcome Outcome       `json:"outcome"`
	Needed  string        `json:"needed,omitempty"` // the bad check that this one needs, if it was not judged for that reason
	Seen    []string      `json:"seen,omitempty"`   // what was found, or why the check is unsupported
	Notes   []string      `json:"notes,omitempty"`  // what is worth knowing, but no fault
	Repeat  string        `json:"repeat,omitempty"` // the command that repeats just this check
	Took    time.Duration `json:"tookNs"`
}

// Report has the results of Run, and what Run has judged.
type Report struct {
	Conf    string        `json:"conf"` // the list's path
	Network string        `json:"network"`
	Version string        `json:"cniVersion"`
	Plugins []PluginInfo  `json:"plugins"`
	Kernel  string        `json:"kernel"`
	When    time.Time     `json:"when"`
	Took    time.Duration `json:"tookNs"`
	Results []Result      `json:"results"`
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

// Clean reports whether no result has the outcome Fail or Leak.
func (r *Report) Clean() bool { return r.Count(Fail)+r.Count(Leak) == 0 }
