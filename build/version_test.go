// Package build tests the scripts of this folder.
package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// run runs a command in a folder and returns what it prints.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir),
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b.invalid", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b.invalid")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// A tag is the version of its commit. A commit behind a tag has a version that is newer than
// this tag and older than the next one, also by dpkg's order.
func TestVersion(t *testing.T) {
	dir := t.TempDir()
	script, err := os.ReadFile("version")
	must(t, err)
	must(t, os.Mkdir(filepath.Join(dir, "build"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "build", "version"), script, 0o755))
	git := func(args ...string) { t.Helper(); run(t, dir, "git", args...) }
	var all []string
	want := func(pattern string) {
		t.Helper()
		have := run(t, dir, "build/version")
		if !regexp.MustCompile("^" + pattern + "$").MatchString(have) {
			t.Errorf("version is %s, want %s", have, pattern)
		}
		all = append(all, strings.TrimPrefix(have, "v"))
	}
	want(`v0\.0\.0\+unknown`)
	all = nil
	git("init", "-q")
	git("add", ".")
	git("commit", "-qm", "first")
	want(`v0\.0\.0\+1\.g[0-9a-f]+`)
	git("tag", "v0.1.0")
	git("tag", "other")
	want(`v0\.1\.0`)
	git("commit", "-qm", "second", "--allow-empty")
	want(`v0\.1\.0\+1\.g[0-9a-f]+`)
	git("commit", "-qm", "third", "--allow-empty")
	git("tag", "-m", "annotated", "v0.1.1")
	must(t, os.WriteFile(filepath.Join(dir, "build", "version"), append(script, '\n'), 0o755))
	want(`v0\.1\.1\+0\.g[0-9a-f]+\.dirty`)
	git("commit", "-qam", "fourth")
	want(`v0\.1\.1\+1\.g[0-9a-f]+`)
	git("tag", "v0.10.0")
	want(`v0\.10\.0`)

	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("dpkg, which says what it takes for newer, is not here")
	}
	for i := range all[1:] {
		if exec.Command("dpkg", "--compare-versions", all[i], "lt", all[i+1]).Run() != nil {
			t.Errorf("dpkg does not take %s for older than %s", all[i], all[i+1])
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
