package command

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/conform"
)

// listChecks says which checks there are.
func (o *conforming) listChecks() error {
	chosen := slices.DeleteFunc(conform.Checks(), func(c conform.Check) bool { return !o.chosen(c) })
	if o.format == "json" {
		out := json.NewEncoder(o.stdout)
		out.SetEscapeHTML(false)
		out.SetIndent("", "  ")
		return out.Encode(chosen)
	}
	for _, c := range chosen {
		if _, err := fmt.Fprintf(o.stdout, "%s  (%s)\n    %s (%s)\n", c.Name, c.Level, c.Says, c.Spec); err != nil {
			return err
		}
	}
	return nil
}

// note prints a line of progress.
func (o *conforming) note(format string, args ...any) {
	_, _ = fmt.Fprintf(o.stderr, format+"\n", args...) // a reader who has left needs no progress
}

// lineByLine shows progress in a log, one line for each check.
func (o *conforming) lineByLine(r conform.Result) {
	o.ended++
	o.note("%3d  %-11s  %s  %s", o.ended, r.Outcome, r.Check, r.Took.Round(10*time.Millisecond))
}

// overwritten shows progress on a terminal, in one line that is overwritten. Lines of bad
// results stay.
func (o *conforming) overwritten(r conform.Result) {
	o.wipe()
	if r.Outcome.Bad() || r.Outcome == conform.Flaky {
		o.note("%s  %s", r.Outcome, r.Check)
	}
	o.ended++
	_, _ = fmt.Fprintf(o.stderr, "%d done, the last was %s", o.ended, r.Check)
}

// wipe empties the line of a terminal (ECMA-48, EL).
func (o *conforming) wipe() { _, _ = fmt.Fprint(o.stderr, "\r\x1b[K") }

// command returns a command line that runs only some checks again, from any folder.
func (o *conforming) command(run string) string {
	words := append(o.words(), "--bin-dir", absolute(o.BinDir))
	for _, path := range o.confs {
		words = append(words, "--conf", absolute(path))
	}
	for _, dir := range o.StateDirs {
		words = append(words, "--state-dir", absolute(dir))
	}
	if o.HookDir != "" {
		words = append(words, "--hook-dir", absolute(o.HookDir))
	}
	for _, name := range []string{"timeout", "grace", "points", "churn", "ifname", "repeat"} {
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

// words returns how to call this command from any folder: the program by its absolute path, if it was called by a path.
func (o *conforming) words() []string {
	words := strings.Fields(o.name)
	if strings.Contains(o.self, "/") {
		words[0] = absolute(o.self)
	}
	return words
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

// coloured reports whether what is written gets colours: a terminal does, unless its user wants none (no-color.org).
func coloured(w io.Writer) bool {
	return isTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
