package conform

import "slices"

// Party is whom an obligation of the specification binds.
type Party string

// The parties.
const (
	OfPlugin  Party = "plugin"
	OfRuntime Party = "runtime"       // the suite plays the runtime, and judges none
	OfConfig  Party = "configuration" // whoever writes the list
)

// Obligation is what a sentence of the specification, in CNI 0.4.0, 1.0.0 or 1.1.0, asks of somebody.
type Obligation struct {
	ID      string `json:"id"`
	Binds   Party  `json:"binds"`
	Section string `json:"section,omitempty"` // in 1.0.0 and 1.1.0: "2, ADD"; "": only 0.4.0 has it
	Before  string `json:"before,omitempty"`  // the heading in 0.4.0; "": 0.4.0 does not have it
	Since   string `json:"since,omitempty"`   // "1.1.0" if 1.0.0 does not have it
	Says    string `json:"says"`              // in the suite's own words

	Level Level `json:"level"`           // how far it binds: Must or Should
	Early Level `json:"early,omitempty"` // how far it binds in 0.4.0, if that is not Level

	Checks   []string `json:"checks,omitempty"`   // the checks that judge it
	Unjudged string   `json:"unjudged,omitempty"` // of a plugin's obligation without a check: why nobody can judge it from outside
}

// obligations are the obligations of all sections, in the order of CNI 1.1.0.
var obligations = slices.Concat(configObligations, callObligations, attachObligations, checkObligations, askObligations, runObligations, delegateObligations, resultObligations, errorObligations)

// Obligations returns what the specification asks of plugins, runtimes and lists, in the order of its sections.
func Obligations() []Obligation { return slices.Clone(obligations) }

// In returns how far an obligation binds in a version; "" if the version does not have it.
func (o Obligation) In(version string) Level {
	switch old := older(version, "1.0.0"); {
	case old && o.Before == "", !old && o.Section == "", older(version, o.Since):
		return ""
	case old && o.Early != "":
		return o.Early
	}
	return o.Level
}

// Head returns the section that the matrix names: that of 1.1.0 or, if only 0.4.0 has the obligation, that of 0.4.0.
func (o Obligation) Head() string {
	if o.Section == "" {
		return "0.4.0, " + o.Before
	}
	return o.Section
}

// obligationsOf returns the obligations that a check judges, without the names of their checks.
func obligationsOf(check string) (all []Obligation) {
	for _, o := range obligations {
		if slices.Contains(o.Checks, check) {
			o.Checks = nil
			all = append(all, o)
		}
	}
	return all
}
