package failures

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/test/programs"
)

// known is every failure of another system that is known to us, by the numbers
// of its trackers. Each needs a row in docs/RELIABILITY.md.
const known = `
aws #3824, #3887, #1967; aws #3019; aws #1374, #1375, #1313; aws #2896; aws #3634
aws #1600, #3309; aws #2948, #3684; aws #3719; aws #69, #608; aws PR #3764; aws, from source

cilium #44463, #44530; cilium #46677; cilium #43577; cilium #9854, #10065, #29443
cilium #39370, #40568, #42074; cilium #22067, #40931; cilium #35411, #40219; cilium #39751
cilium #37746, #40393, #45383; cilium #24361, #21604; agent-sandbox #1187
cilium, from source; cilium, general

multus #1449, #755; multus #1239, #1084; multus #355, #922; multus #1087; multus #1372, #822
multus #1221; multus #1346; multus #239, #323; multus, general

runtimes, general; containerd #5438, #5569; containerd #12923, #5768; containerd #12130
containerd #8774, #11209; containerd #3667, #6143; cri #948, cri-o #4727; cri-o #7010, #9097
cri #568; plugins #252, #332; plugins #123, #1190; plugins #752, #683, #810; cni #1055
libcni, general; plugins, general; plugins PR #562, calico #13986, kubernetes #56840

CVE-2021-20206 CVE-2020-10749 CVE-2025-67499 CVE-2020-15257 CVE-2022-29178 CVE-2024-25621
CVE-2025-0750 CVE-2026-53489 CVE-2022-0811 CVE-2024-3154 CVE-2022-31030 CVE-2023-27595
CVE-2025-32793
`

var (
	issue   = regexp.MustCompile(`(?:([a-z-]+)\s+)?(?:PR\s+)?#(\d+)|([a-z]+),\s+(from\s+source|general)|(CVE-\d+-\d+)`)
	link    = regexp.MustCompile(`\[(\w+)(?:/[^\]]*)?\]\(\.\./([^)]+_test\.go)\)`)
	section = regexp.MustCompile(`(?m)^## .*$`)
)

// issues returns the failures that a text names: "aws #1375" for the second of
// "aws #1374, #1375".
func issues(text string) []string {
	var all []string
	system := ""
	for _, m := range issue.FindAllStringSubmatch(text, -1) {
		if m[1] != "" {
			system = m[1]
		}
		switch {
		case m[2] != "":
			all = append(all, system+" #"+m[2])
		case m[3] != "":
			all = append(all, m[3]+", "+strings.Join(strings.Fields(m[4]), " "))
		default:
			all = append(all, m[5])
		}
	}
	return all
}

// comments returns the comments above the tests of a file, by the tests' names.
func comments(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
	must(t, err)
	found := map[string]string{}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
			found[f.Name.Name] = f.Doc.Text()
		}
	}
	return found
}

// The list for users says the truth. Each known failure has a row. Each row names a test that
// exists, and whose comment names the failure, or else the part of Berth that is not there yet.
func TestReliabilityDocument(t *testing.T) {
	top := programs.Tree(t)
	raw, err := os.ReadFile(filepath.Join(top, "docs", "RELIABILITY.md"))
	must(t, err)
	var listed []string
	for _, row := range strings.Split(string(raw), "\n") {
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		if !strings.HasPrefix(row, "| ") || len(issues(cells[0])) == 0 {
			continue
		}
		if len(cells) != 3 {
			t.Errorf("%d cells in the row %s", len(cells), row)
			continue
		}
		of := issues(cells[0])
		listed = append(listed, of...)
		tests := link.FindAllStringSubmatch(cells[2], -1)
		if len(tests) == 0 && !strings.Contains(later(string(raw)), row) {
			t.Errorf("no test is named in the row %s", row)
		}
		var about []string
		for _, m := range tests {
			comment, ok := comments(t, filepath.Join(top, m[2]))[m[1]]
			if !ok {
				t.Errorf("%s has no %s", m[2], m[1])
			}
			about = append(about, issues(comment)...)
		}
		for _, i := range of {
			if len(tests) > 0 && !slices.Contains(about, i) {
				t.Errorf("%s: none of its tests says so in its comment: %s", i, cells[2])
			}
		}
	}
	for _, i := range issues(known) {
		if !slices.Contains(listed, i) {
			t.Errorf("docs/RELIABILITY.md has no row of %s", i)
		}
	}
}

// later is the section of what cannot happen yet.
func later(document string) string {
	_, after, _ := strings.Cut(document, "\n## What cannot happen yet\n")
	if next := section.FindStringIndex(after); next != nil {
		after = after[:next[0]]
	}
	return after
}
