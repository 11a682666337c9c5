package conform

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Known is a failure that is known: the check is bad, and that fails no run. If it passes, that does fail the run: then the entry is to go.
type Known struct {
	Check  string `json:"check"`           // the check's name, with "@version" for one version alone
	Reason string `json:"reason"`          // why it is bad
	Issue  string `json:"issue,omitempty"` // where people work on it, as a link
}

// ReadKnown reads a file of known failures: a JSON array of Known.
func ReadKnown(path string) ([]Known, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []Known
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.DisallowUnknownFields()
	if err := d.Decode(&all); err != nil {
		return nil, fmt.Errorf("%s: no array of known failures: %w", path, err)
	}
	for i, k := range all {
		name, version, each := strings.Cut(k.Check, "@")
		at := slices.IndexFunc(checks, func(c Check) bool { return c.Name == name })
		switch {
		case at < 0:
			return nil, fmt.Errorf("%s: entry %d: there is no check %.60q", path, i+1, k.Check)
		case each && (!checks[at].Each || !slices.Contains(judged, version)):
			return nil, fmt.Errorf("%s: entry %d: %.60q: the check is not judged in that version alone", path, i+1, k.Check)
		case k.Reason == "":
			return nil, fmt.Errorf("%s: entry %d: %s has no reason", path, i+1, k.Check)
		case slices.ContainsFunc(all[:i], func(other Known) bool { return other.Check == k.Check }):
			return nil, fmt.Errorf("%s: entry %d: %s is there twice", path, i+1, k.Check)
		}
	}
	return all, nil
}

// words say why a check is bad.
func (k Known) words() string {
	if k.Issue == "" {
		return k.Reason
	}
	return k.Reason + " (" + k.Issue + ")"
}

// covers reports whether an entry is about a result.
func (k Known) covers(r Result) bool {
	base, _, _ := strings.Cut(r.Check, "@")
	return k.Check == r.Check || k.Check == base
}

// Expect compares the results with the failures that are known. A result that is bad, as it is known to be, gets its entry (Result.Known). An
// entry all of whose results pass is one of Unexpected.
func (r *Report) Expect(all []Known) {
	r.Unexpected = nil
	for _, k := range all {
		bad, passed := 0, 0
		for i := range r.Results {
			one := &r.Results[i]
			switch {
			case !k.covers(*one):
			case one.faulty():
				bad++
				one.Known = &k
			case one.Outcome == Pass:
				passed++
			}
		}
		if bad == 0 && passed > 0 {
			r.Unexpected = append(r.Unexpected, k)
		}
	}
}

// known returns how many results with an outcome are known to be bad.
func (r *Report) known(o Outcome) int {
	n := 0
	for _, one := range r.Results {
		if one.Outcome == o && one.Known != nil {
			n++
		}
	}
	return n
}

// faulty reports whether the plugin has a fault, at each time or at some.
func (r Result) faulty() bool { return r.Outcome.Bad() || r.Outcome == Flaky }

// Failed reports whether a run fails: a result that is not known to be bad is bad, or flaky, at a level or a stricter one; or one that is known to be bad
// passes.
func (r *Report) Failed(at Level) bool {
	return len(r.Unexpected) > 0 || slices.ContainsFunc(r.Results, func(one Result) bool {
		return one.faulty() && one.Known == nil && one.Level.Within(at)
	})
}

// Judged reports whether at least one check could be judged, and, if the suite tried, a pod could be attached: of plugins that cannot attach one
// here, VERSION says next to nothing.
func (r *Report) Judged() bool {
	if slices.ContainsFunc(r.Results, func(one Result) bool { return one.Check == "basic/attach" && one.Outcome == Unsupported }) {
		return false
	}
	return slices.ContainsFunc(r.Results, func(one Result) bool { return one.Outcome != Unsupported })
}
