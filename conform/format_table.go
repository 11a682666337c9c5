package conform

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// colours are the outcomes' colours in the terminal's own palette (ECMA-48, SGR).
var colours = map[Outcome]string{Pass: "32", Fail: "31;1", Leak: "35;1", Flaky: "33;1", Unsupported: "2"}

// writeTable writes a report for people: below each verb a line for each check, and below
// each bad check the reasons.
func (r *Report) writeTable(w io.Writer, colour bool) error {
	p := &page{colour: colour}
	p.head(r)
	var verbs []string // in the order of their first check
	of := map[string][]Result{}
	for _, one := range r.Results {
		verb, name, _ := strings.Cut(one.Check, "/")
		if of[verb] == nil {
			verbs = append(verbs, verb)
		}
		of[verb] = append(of[verb], one)
		p.width = max(p.width, len(name))
	}
	for _, verb := range verbs {
		p.printf("\n%s\n", verb)
		p.results(of[verb])
	}
	p.unexpected(r.Unexpected)
	if r.Interrupted {
		p.printf("\nInterrupted: not all checks have run.\n")
	}
	p.printf("\n%s\n", r.Summary())
	_, err := io.WriteString(w, p.String())
	return err
}

// Summary says in a line how many results have each outcome, how many of these are known to be bad, and how long the run took.
func (r *Report) Summary() string {
	counts := make([]string, 0, 4)
	for _, o := range []Outcome{Fail, Leak, Flaky, Pass, Unsupported} {
		if o == Flaky && r.Count(o) == 0 {
			continue
		}
		counts = append(counts, fmt.Sprintf("%d %s", r.Count(o), o))
		if n := r.known(o); n > 0 {
			counts[len(counts)-1] += fmt.Sprintf(" (%d of them known)", n)
		}
	}
	if n := r.NotJudged(); n > 0 {
		counts[len(counts)-1] += fmt.Sprintf(" (%d of them not judged)", n)
	}
	checks := "checks"
	if len(r.Results) == 1 {
		checks = "check"
	}
	return fmt.Sprintf("%d %s: %s; took %s", len(r.Results), checks, strings.Join(counts, ", "), r.Took.Round(100*time.Millisecond))
}

// page is a table that is being written.
type page struct {
	strings.Builder
	colour bool
	width  int // of the column of the checks' names
}

func (p *page) printf(format string, args ...any) { fmt.Fprintf(&p.Builder, format, args...) }

// head says what was judged.
func (p *page) head(r *Report) {
	p.printf("%s: network %s, cniVersion %s, kernel %s, %s\n", r.Conf, r.Network, r.Version, r.Kernel, r.When.UTC().Format(time.DateTime+" UTC"))
	for _, one := range r.Plugins {
		p.printf("  %s speaks %s\n", one.Type, cmp.Or(strings.Join(one.Versions, ", "), "no version"))
	}
}

// results writes the results of a group. Those that were not judged for the same reason have one line: of a plugin that attaches nothing they would bury what
// is bad.
func (p *page) results(all []Result) {
	for len(all) > 0 {
		same := slices.DeleteFunc(slices.Clone(all), func(r Result) bool { return !r.notJudged() || !slices.Equal(r.Seen, all[0].Seen) })
		if len(same) < 2 {
			p.result(all[0])
			all = all[1:]
			continue
		}
		p.result(Result{Check: fmt.Sprintf("/%d checks", len(same)), Outcome: Unsupported, Seen: same[0].Seen})
		all = slices.DeleteFunc(slices.Clone(all), func(r Result) bool { return r.notJudged() && slices.Equal(r.Seen, same[0].Seen) })
	}
}

// notJudged reports whether a check was not made because of another check's result.
func (r Result) notJudged() bool {
	return r.Outcome == Unsupported && len(r.Seen) == 1 && strings.HasPrefix(r.Seen[0], "not judged: ")
}

// result writes a check's line, and the lines below it.
func (p *page) result(r Result) {
	outcome := fmt.Sprintf("%-11s", r.Outcome)
	if p.colour {
		outcome = fmt.Sprintf("\x1b[%sm%s\x1b[0m", colours[r.Outcome], outcome)
	}
	_, name, _ := strings.Cut(r.Check, "/")
	p.printf("  %s  %-*s  %6s", outcome, p.width, name, r.Took.Round(10*time.Millisecond))
	if r.Outcome == Unsupported {
		p.printf("  %s", plain(strings.Join(r.Seen, "; ")))
	}
	p.printf("\n")
	if r.faulty() {
		p.below("says", r.Says+" ("+r.Spec+")")
		p.below("level", string(r.Level)+", "+r.Level.words())
		p.below("seen", strings.Join(r.Seen, "\n"))
	}
	p.below("note", strings.Join(r.Notes, "\n"))
	if r.faulty() {
		p.below("repeat", r.Repeat)
	}
	if r.Known != nil {
		p.below("known", r.Known.words())
	}
}

// unexpected says which checks pass that are known to be bad.
func (p *page) unexpected(all []Known) {
	for i, k := range all {
		if i == 0 {
			p.printf("\nThese pass, although they are known to be bad: take them from the list of known failures.\n")
		}
		p.printf("  %s: %s\n", k.Check, plain(k.words()))
	}
}

// below writes lines under a check, the first with a label.
func (p *page) below(label, text string) {
	if text == "" {
		return
	}
	for line := range strings.Lines(text) {
		p.printf("      %-6s  %s\n", label, plain(line))
		label = ""
	}
}

// plain removes control characters from a line, since plugins have written parts of it.
func plain(line string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return -1
		}
		return r
	}, line)
}
