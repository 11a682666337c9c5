package cli

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/berth-net/berth/conform"
)

// listChecks says which checks there are.
func (o *conforming) listChecks() {
	for _, c := range conform.Checks() {
		if o.chosen(c) {
			o.say("%s\n    %s (%s)\n", c.Name, c.Says, c.Spec)
		}
	}
}

// lineByLine shows progress in a log, one line for each check.
func (o *conforming) lineByLine(r conform.Result) {
	o.ended++
	o.none("%3d  %-11s  %s  %s", o.ended, r.Outcome, r.Check, r.Took.Round(10*time.Millisecond))
}

// overwritten shows progress on a terminal, in one line that is overwritten. Lines of bad
// results stay.
func (o *conforming) overwritten(r conform.Result) {
	o.wipe()
	if r.Outcome.Bad() {
		o.none("%s  %s", r.Outcome, r.Check)
	}
	o.ended++
	_, _ = fmt.Fprintf(o.stderr, "%d done, the last was %s", o.ended, r.Check)
}

// wipe empties the line of a terminal (ECMA-48, EL).
func (o *conforming) wipe() { _, _ = fmt.Fprint(o.stderr, "\r\x1b[K") }

// command returns a command line that runs only some checks again, from any folder.
func (o *conforming) command(run string) string {
	words := []string{o.program(), "conform", "--bin-dir", absolute(o.BinDir), "--conf", absolute(o.Conf)}
	for _, dir := range o.StateDirs {
		words = append(words, "--state-dir", absolute(dir))
	}
	if o.HookDir != "" {
		words = append(words, "--hook-dir", absolute(o.HookDir))
	}
	for _, name := range []string{"timeout", "grace", "points", "churn"} {
		if f := o.given.Flags().Lookup(name); f.Changed {
			words = append(words, "--"+name, f.Value.String())
		}
	}
	words = append(words, "--run", run)
	for i, w := range words {
		words[i] = quoted(w)
	}
	return strings.Join(words, " ")
}

// program returns how to call this program from any folder: by its absolute path if it was
// called by a path.
func (o *conforming) program() string {
	if strings.Contains(o.self, "/") {
		return absolute(o.self)
	}
	return "berth"
}

// bare matches words that a shell takes without quotes.
var bare = regexp.MustCompile(`^[a-zA-Z0-9_./:=@%+,-]+$`)

// quoted writes a word for a POSIX shell.
func quoted(word string) string {
	if bare.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
