package conform

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/conform/oracle"
)

// T is one run of a check, on a node of its own, in one version of the
// specification.
type T struct {
	*Node
	suite   *suite
	ctx     context.Context
	Version string

	ids     int
	level   Level // of the obligation that is judged now
	worst   Level // the strictest level of a finding; "": no finding
	outcome Outcome
	seen    []string
	notes   []string
	serving []io.Closer // sockets of the check's own servers
}

// list returns the list whose plugins the check calls.
func (t *T) list() *List { return t.suite.listOf(t.Version) }

// stop is the value of the panic that ends a check early.
type stop struct{}

// do runs a check. If the suite itself fails, the outcome is unsupported: no plugin is
// blamed for that.
func (t *T) do(c Check) {
	if c.usual {
		t.learnUsual()
	}
	var err error
	if t.Node, err = t.suite.newNode(t.ctx); err != nil {
		t.outcome, t.seen = Unsupported, []string{"the suite could not make a node: " + err.Error()}
		return
	}
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(stop); !ok {
				panic(r)
			}
		}
		t.noteReadOnly()
		for _, s := range t.serving {
			s.Close()
		}
		if err := t.Node.close(t.ctx); err != nil {
			t.Notef("ending the node: %v", err)
		}
	}()
	c.run(t)
}

// anotherNode ends the node and makes another node, for steps that must not find anything that
// plugins have left on the first node.
func (t *T) anotherNode() {
	t.must(t.Node.close(t.ctx))
	n, err := t.suite.newNode(t.ctx)
	t.must(err)
	t.Node = n
}

// Failf reports an obligation that a plugin does not meet; the check goes on.
func (t *T) Failf(format string, args ...any) { t.found(Fail, format, args...) }

// Fatalf does what Failf does, and ends the check.
func (t *T) Fatalf(format string, args ...any) {
	t.Failf(format, args...)
	panic(stop{})
}

// Leakf reports what was left behind; the check goes on.
func (t *T) Leakf(format string, args ...any) { t.found(Leak, format, args...) }

// Unsupportedf reports why the check cannot be made, and ends the check.
func (t *T) Unsupportedf(format string, args ...any) {
	if t.outcome == "" {
		t.found(Unsupported, format, args...)
	}
	panic(stop{})
}

// Notef notes something that is worth knowing, but no fault.
func (t *T) Notef(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

// found adds a line to what the check has seen. It keeps the first outcome, since the first fault may
// have caused the others.
func (t *T) found(o Outcome, format string, args ...any) {
	if t.outcome == "" {
		t.outcome = o
	}
	if o.Bad() && (t.worst == "" || t.level.Within(t.worst)) {
		t.worst = t.level
	}
	t.seen = append(t.seen, fmt.Sprintf(format, args...))
}

// must ends the check if the suite itself failed.
func (t *T) must(err error) {
	if err != nil {
		t.Unsupportedf("the suite could not go on: %v", err)
	}
}

// NewPod is Node.Pod, but ends the check if no pod can be made.
func (t *T) NewPod() *Pod {
	p, err := t.Node.Pod()
	t.must(err)
	return p
}

// Seen is Node.Look, but ends the check if Look fails, or if the suite's context has ended.
func (t *T) Seen() oracle.State {
	t.must(t.ctx.Err())
	s, err := t.Look()
	t.must(err)
	return s
}

// Warm attaches a pod and detaches it, so that plugins set up what they set up once, such as a
// bridge or a chain. Warm returns the node's state after that: a thing that is new later comes
// from a later step.
func (t *T) Warm() oracle.State {
	empty := t.Seen()
	a := t.Attached()
	t.MustDel(a)
	t.must(a.Pod.Remove())
	t.quiet(empty)
	return t.Seen()
}

// needCapability ends the check if no plugin of the list declares a capability.
func (t *T) needCapability(name string) {
	if !slices.ContainsFunc(t.list().Plugins, func(p Plugin) bool { return slices.Contains(p.Capabilities, name) }) {
		t.Unsupportedf("no plugin of the list declares the capability %s", name)
	}
}

// quiet waits, for the grace at most, until the number of new things has not changed for
// some polls.
func (t *T) quiet(before oracle.State) {
	last, same := before.New(t.Seen()), 0
	for end := time.Now().Add(t.suite.Grace); len(last) > 0 && same < calm && time.Now().Before(end); {
		time.Sleep(poll)
		now := before.New(t.Seen())
		if same++; len(now) != len(last) {
			same = 0
		}
		last = now
	}
}

// poll is the pause between two looks of the oracle. calm is how many looks in a row have to
// see the same number of new things.
const (
	poll = 100 * time.Millisecond
	calm = 3
)

// WantNothingNew waits, for the grace at most, until nothing is there that was not there
// before. Anything new that is still there after that is a leak.
func (t *T) WantNothingNew(before oracle.State, after string) {
	began := time.Now()
	for {
		waited := time.Since(began) // taken before Seen, which may take long
		left := before.New(t.Seen())
		switch {
		case len(left) == 0:
			if waited > time.Second {
				t.Notef("after %s it took %s until everything new was gone", after, waited.Round(poll))
			}
			return
		case waited > t.suite.Grace:
			t.Leakf("after %s these are left:\n%s", after, some(brief(left), 20))
			return
		}
		time.Sleep(poll)
	}
}

// brief returns the oracle's lines about new things as a report has them: of a new file it is enough that it is there, and not whom it mentions.
func brief(lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		path, mention := strings.CutPrefix(line, "file-content ")
		path, _, _ = strings.Cut(path, " mentions ")
		return mention && slices.Contains(lines, "file "+path)
	})
}

// wantNothingNew is WantNothingNew for one of several steps. It returns the state before the
// next step, so that the check reports things that one step has left only once.
func (t *T) wantNothingNew(before oracle.State, after string) oracle.State {
	t.WantNothingNew(before, after)
	return t.Seen()
}

// standing is what there was before a call that has to spare it.
type standing struct {
	node   oracle.State
	a      *Attachment
	linked bool // the attachment's interface was there: a plugin that makes none, such as loopback, cannot lose it
}

// standing returns what there is on the node and of an attachment.
func (t *T) standing(a *Attachment) standing { return standing{t.Seen(), a, t.linkNow(a) != nil} }

// wantSpared fails unless everything that was there before is still there, and the attachment's
// interface as well. who names the call that should have spared these things, and whose names
// their owner.
func (t *T) wantSpared(before standing, who, whose string) {
	if gone := t.Seen().New(before.node); len(gone) > 0 {
		t.Failf("%s removed these from %s:\n%s", who, whose, some(gone, 20))
	}
	if before.linked && t.linkNow(before.a) == nil {
		t.Failf("%s removed the interface of %s", who, whose)
	}
}

// some returns the first lines, up to the number `most`, and says how many more lines there are.
func some(lines []string, most int) string {
	if more := len(lines) - most; more > 0 {
		return fmt.Sprintf("%s\n... and %d more", strings.Join(lines[:most], "\n"), more)
	}
	return strings.Join(lines, "\n")
}
