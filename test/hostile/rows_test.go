package hostile

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-net/berth/test/programs"
)

// A test as docs/SECURITY.md names it: [TestName](../path/of_test.go).
var named = regexp.MustCompile(`\[(Test\w+)\]\(\.\./([^)]+_test\.go)\)`)

// The list of promises says the truth: each row names tests that exist, and the list names each
// test of this package but this one.
func TestSecurityDocument(t *testing.T) {
	top := programs.Tree(t)
	raw, err := os.ReadFile(filepath.Join(top, "docs", "SECURITY.md"))
	must(t, err)
	listed := map[string]bool{}
	for line := range strings.SplitSeq(string(raw), "\n") {
		links := named.FindAllStringSubmatch(line, -1)
		head := strings.HasPrefix(line, "|---") || strings.HasSuffix(line, "| test |")
		if strings.HasPrefix(line, "|") && !head && len(links) == 0 {
			t.Errorf("no test is named in the row %s", line)
		}
		for _, m := range links {
			listed[m[1]] = true
			if !tests(t, filepath.Join(top, m[2]))[m[1]] {
				t.Errorf("%s has no %s", m[2], m[1])
			}
		}
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil || len(files) < 5 {
		t.Fatalf("files of tests: %q, %v", files, err)
	}
	for _, f := range files {
		for name := range tests(t, f) {
			if !listed[name] && name != t.Name() && name != "TestMain" {
				t.Errorf("docs/SECURITY.md does not name %s", name)
			}
		}
	}
}

// tests are the names of a file's tests.
func tests(t *testing.T, path string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	must(t, err)
	found := map[string]bool{}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
			found[f.Name.Name] = true
		}
	}
	return found
}
