package notice

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/hold"
)

// debts are what a node owes in a test, and whom its ledger has.
type debts struct {
	Releases
	now   time.Time
	holds []api.OwedHold
	known map[string]bool
}

func (d *debts) owe(pod, owner, kind string) {
	h := api.OwedHold{Owed: api.Owed{Owner: owner, Kind: kind, What: kind + " of " + owner, Since: d.now, Error: "broken"}}
	if pod != "" {
		h.Pod = &api.Pod{Namespace: "shop", Name: pod, UID: "u-" + pod}
	}
	d.holds = append(d.holds, h)
	d.known[owner] = true
}

func (d *debts) pay(owner, kind string) {
	d.holds = slices.DeleteFunc(d.holds, func(h api.OwedHold) bool { return h.Owner == owner && h.Kind == kind })
}

// look returns of whom there are troubles.
func (d *debts) look(after time.Duration) (names []string) {
	d.now = d.now.Add(after)
	owner := func(id hold.ID) (hold.Owner, bool) { return hold.Owner{ID: id}, d.known[string(id)] }
	for _, t := range d.Troubles("n", d.holds, owner, Long, d.now) {
		names = append(names, t.About.Name)
	}
	return names
}

// A trouble begins when something is owed for long, and ends when the ledger has forgotten the owner: not between two steps of a
// release, and not while something is owed that is not owed for long yet.
func TestReleases(t *testing.T) {
	d := debts{now: time.Unix(1000, 0), known: map[string]bool{}}
	want := func(when string, after time.Duration, names ...string) {
		t.Helper()
		if have := d.look(after); !slices.Equal(have, names) {
			t.Errorf("%s: there are troubles of %q, want %q", when, have, names)
		}
	}
	d.owe("a", "1", "link")
	want("a young hold", 59*time.Second)
	want("after a minute", time.Second, "n", "a")
	d.owe("b", "2", "link")
	d.pay("1", "link")
	want("the link is given back, and the address not yet", 10*time.Second, "n", "a")
	d.owe("a", "1", "address")
	want("the address fails", 10*time.Second, "n", "a")
	d.pay("1", "address")
	d.owe("a", "1", "ledger")
	want("the owner cannot be forgotten", 10*time.Second, "n", "a")
	d.owe("a", "3", "link")
	d.pay("1", "ledger")
	delete(d.known, "1")
	want("another owner of a is owed, if not for long", 10*time.Second, "n", "a")
	d.pay("3", "link")
	delete(d.known, "3")
	want("b is owed, if not for long", 10*time.Second, "n")
	want("b is owed for long", 10*time.Second, "n", "b")
	d.pay("2", "link")
	delete(d.known, "2")
	want("all is paid", 10*time.Second)
	d.owe("", "4", "table")
	want("the node's own", time.Minute, "n")
	if text := d.Troubles("n", d.holds, nil, Long, d.now)[0].Text; !strings.Contains(text, "The oldest is of the node's own network: table of 4 (table), owed since ") {
		t.Errorf("the node's Event says %q", text)
	}
}

// When the releases of many pods are owed, the oldest have Events, and keep them until they are given back.
func TestReleasesOfManyPods(t *testing.T) {
	d := debts{now: time.Unix(1000, 0), known: map[string]bool{}}
	var oldest []string
	for i := range 6 * mostPods {
		name := fmt.Sprintf("pod-%03d", 999-i)
		if i < mostPods {
			oldest = append(oldest, name)
		}
		d.owe(name, name, "link")
		d.now = d.now.Add(time.Millisecond)
	}
	if have, want := d.look(Long), append([]string{"n"}, oldest...); !slices.Equal(have, want) {
		t.Fatalf("there are troubles of %q, want %q", have, want)
	}
	d.pay(oldest[0], "link")
	d.owe(oldest[0], oldest[0], "address") // which is younger than what all others owe
	if have := d.look(Long); len(have) != 1+mostPods || !slices.Contains(have, oldest[0]) {
		t.Errorf("then there are troubles of %q, want %s among them", have, oldest[0])
	}
	d.pay(oldest[0], "address")
	delete(d.known, oldest[0])
	if have := d.look(time.Second); len(have) != 1+mostPods || slices.Contains(have, oldest[0]) || !slices.Contains(have, fmt.Sprintf("pod-%03d", 999-mostPods)) {
		t.Errorf("when one is given back, there are troubles of %q", have)
	}
}
