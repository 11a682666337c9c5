package conform

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// ReadReport reads a report that Report.Write has written as JSON.
func ReadReport(path string) (*Report, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r, err := parseReport(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// parseReport reads a report of this suite or of one whose reports have the same keys: later ones may have more keys.
func parseReport(raw []byte) (*Report, error) {
	var r Report
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("no report in JSON: %w", err)
	}
	major := func(version string) string { before, _, _ := strings.Cut(version, "."); return before }
	if major(r.Suite) != major(Version) {
		return nil, fmt.Errorf("suite %.40q: expected a report of version %s.x of the suite", r.Suite, major(Version))
	}
	for _, one := range r.Results {
		if !slices.Contains([]Outcome{Pass, Fail, Leak, Flaky, Unsupported}, one.Outcome) {
			return nil, fmt.Errorf("%.60q: outcome %.40q: expected pass, fail, leak, flaky or unsupported", one.Check, one.Outcome)
		}
		if !slices.Contains(Levels(), one.Level) {
			return nil, fmt.Errorf("%.60q: level %.40q: expected one of %v", one.Check, one.Level, Levels())
		}
	}
	return &r, nil
}
