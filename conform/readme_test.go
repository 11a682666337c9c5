package conform

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the list of checks into README.md")

// The list of checks in README.md is that of Checks.
func TestReadme(t *testing.T) {
	const file, heading, after = "README.md", "| check | level | says |\n|---|---|---|\n", "\n`conform.Checks()`"
	raw, err := os.ReadFile(file)
	must(t, err)
	before, rest, found := strings.Cut(string(raw), heading)
	_, rest, end := strings.Cut(rest, after)
	if !found || !end {
		t.Fatalf("%s has no list of checks", file)
	}
	var lines strings.Builder
	for _, c := range Checks() {
		fmt.Fprintf(&lines, "| `%s` | %s | %s |\n", c.Name, levels(c), c.Says)
	}
	want := before + heading + lines.String() + after + rest
	switch {
	case want == string(raw):
	case *update:
		must(t, os.WriteFile(file, []byte(want), 0o644))
	default:
		t.Errorf("the list of checks in %s is not that of Checks(); run: go -C conform test . -run TestReadme -update", file)
	}
}

// levels says how far a check binds.
func levels(c Check) string {
	if c.Early == "" {
		return string(c.Level)
	}
	return fmt.Sprintf("%s (0.4.0: %s)", c.Level, c.Early)
}

// Each check is complete, and needs only checks that run before it.
func TestChecks(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Checks() {
		if seen[c.Name] || !strings.Contains(c.Name, "/") || c.Spec == "" || c.Says == "" || c.run == nil {
			t.Errorf("%s is there twice, or lacks something", c.Name)
		}
		for _, need := range c.Needs {
			if !seen[need] {
				t.Errorf("%s needs %s, which does not run before it", c.Name, need)
			}
		}
		seen[c.Name] = true
	}
}
