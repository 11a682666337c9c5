// Package doctor looks at a node for what Berth needs and for what will hurt it. A Check is
// data: Checks lists all of them, and to add a check is to add an entry. A check changes nothing on
// the node, needs no agent, and cannot keep the other checks waiting.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/patience"
)

// Verdict says what a check thinks of what it has seen.
type Verdict string

// Verdicts.
const (
	OK      Verdict = "ok"
	Warn    Verdict = "warn"    // what was seen may hurt, or hurts somebody else
	Bad     Verdict = "bad"     // pods cannot be attached, have no network, or will be harmed
	Unknown Verdict = "unknown" // the check could not look; Seen says why
)

// Verdicts lists the verdicts, the best first.
func Verdicts() []Verdict { return []Verdict{OK, Warn, Bad, Unknown} }

// Check is one thing that doctor looks at.
type Check struct {
	Name string
	Why  string // why it matters: sentences, the last one without its full stop
	// Look returns what it finds on the node. Look gets a context that ends with Limit, but Look
	// may hang all the same.
	Look  func(context.Context, *Node) Finding
	Limit time.Duration // how long Look may take; 0: usual
}

// usual is how long a check may take. The slowest ones take some hundred milliseconds.
const usual = 5 * time.Second

// Finding is what a check found.
type Finding struct {
	Verdict Verdict
	Seen    string // what was seen
	Fix     string // a command, or a line of configuration; "" if nothing is wrong
}

func ok(format string, args ...any) Finding {
	return Finding{Verdict: OK, Seen: fmt.Sprintf(format, args...)}
}

// unknown says why a check could not look. Most checks need root for that.
func unknown(err error) Finding {
	return Finding{Verdict: Unknown, Seen: err.Error(), Fix: remedy(err)}
}

// Result is what a check found, with the check's own words.
type Result struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Seen    string  `json:"seen"`
	Why     string  `json:"why"`
	Fix     string  `json:"fix,omitempty"`
}

// Run makes all checks at once, and returns a result for each check, in the checks' order. A check that
// takes longer than its limit has the verdict Unknown, and goes on in the background.
func Run(ctx context.Context, n *Node, checks []Check) []Result {
	var (
		all     = make([]Result, len(checks))
		calls   patience.Calls
		running sync.WaitGroup
	)
	for i, c := range checks {
		running.Go(func() { all[i] = c.run(ctx, n, &calls) })
	}
	running.Wait()
	return all
}

func (c Check) run(ctx context.Context, n *Node, calls *patience.Calls) Result {
	limit := c.Limit
	if limit == 0 {
		limit = usual
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	f, err := patience.Call(calls, c.Name, limit, func() (Finding, error) { return c.Look(ctx, n), nil }, nil)
	if errors.Is(err, patience.ErrHangs) {
		f = Finding{
			Verdict: Unknown, Seen: fmt.Sprintf("no answer within %s: something that this check asks hangs", limit),
			Fix: "see who waits in the kernel, and for what: ps -eo pid,stat,wchan:32,comm | grep ' D'; dmesg | tail",
		}
	}
	f.Seen = strings.Join(strings.Fields(f.Seen), " ") // errors of several lines
	return Result{Name: c.Name, Verdict: f.Verdict, Seen: f.Seen, Why: c.Why, Fix: f.Fix}
}

// Count returns how many results have each verdict.
func Count(all []Result) map[Verdict]int {
	n := map[Verdict]int{}
	for _, r := range all {
		n[r.Verdict]++
	}
	return n
}
