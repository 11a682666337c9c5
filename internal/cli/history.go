package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
)

type historyFlags struct {
	filter    api.PastFilter
	at, since string
}

func (a *app) historyCommand() *cobra.Command {
	var f historyFlags
	c := &cobra.Command{
		Use:   "history [ID|POD|CONTAINER|IP]",
		Short: "Show what became of pods, also of those that are gone; works without the agent, too",
		Long: `Show what became of pods: when each was attached, who had it released, when it
was cut off, when each thing that it had was given back and after how many tries,
and when it was over. Those that are still there come first, then the last to go.

With an argument or a filter, print a timeline for each; without, a line. A time
is 15:04 or 15:04:05 (the last time that it was so), 2006-01-02 15:04, 2006-01-02,
or in RFC 3339; or a duration, such as 90m, for so long ago. --at 15:04 means the
whole minute, 15:04:05 the whole second, 2006-01-02 the whole day.

The agent keeps the last 10,000 pods for 7 days, unless its configuration says
otherwise (history). If no agent answers, the command reads the files itself, also
what the plugin has queued: which pods were deleted meanwhile, and cut off. If the
agent hangs, the command reads only the history files, and says that the rest is
missing.`,
		Example: `  berth history --address 10.88.3.7 --at 14:05     # who had it in that minute?
  berth history default/web-0
  berth history --since 1h
  berth history -o json | jq '.[] | select(.holds[]?.failures)'`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeAttachments,
		RunE:              func(c *cobra.Command, args []string) error { return a.history(c.Context(), f, strings.Join(args, "")) },
	}
	fl := c.Flags()
	fl.StringVar(&f.filter.Pod, "pod", "", "only of this pod: NAMESPACE/NAME, NAME or UID")
	fl.StringVar(&f.filter.Container, "container", "", "only of this container id")
	fl.StringVar(&f.filter.Address, "address", "", "only of pods that had this address")
	fl.StringVar(&f.at, "at", "", "only of pods that were there at this time, at any moment of it, and were not cut off")
	fl.StringVar(&f.since, "since", "", "only of pods that are there, or went at this time or later")
	fl.IntVarP(&f.filter.Limit, "limit", "n", 0, "at most this many; 0: all")
	return c
}

func (a *app) history(ctx context.Context, f historyFlags, arg string) (err error) {
	filter := f.filter
	for _, t := range []struct {
		flag, value string
		from, until *time.Time
	}{{"--at", f.at, &filter.At, &filter.Until}, {"--since", f.since, &filter.Since, new(time.Time)}} {
		if t.value == "" {
			continue
		}
		if *t.from, *t.until, err = a.parseTime(t.value); err != nil {
			return usage{fmt.Errorf("%s %w", t.flag, err)}
		}
	}
	if filter.Address != "" {
		ip, err := netip.ParseAddr(filter.Address)
		if err != nil || ip.Zone() != "" {
			return usage{fmt.Errorf("--address %.80q: expected an address without a prefix length", filter.Address)}
		}
		filter.Address = ip.Unmap().String()
	}
	if filter.Limit < 0 {
		return usage{fmt.Errorf("--limit %d: expected 0 or more", filter.Limit)}
	}
	asked := filter
	if arg != "" {
		asked.Limit = 0 // otherwise the limit would count attachments that match the filter and that the argument does not name
	}
	list, err := a.pasts(ctx, asked)
	if err != nil {
		return err
	}
	if arg != "" {
		if list = matchingPast(list, arg); len(list) == 0 {
			return notInHistory(arg)
		}
		if filter.Limit > 0 {
			list = list[:min(len(list), filter.Limit)]
		}
	}
	return a.print(list, func() {
		switch {
		case len(list) == 0:
			a.none("the history has no such pod")
		case arg != "" || filter.Pod+filter.Container+filter.Address != "" || f.at != "":
			for i, p := range list {
				if i > 0 {
					a.say("\n")
				}
				a.showPast(p)
			}
		default:
			a.table(a.pastTable(list))
		}
	})
}

func notInHistory(arg string) error {
	return fmt.Errorf("%.200q is not the id, pod, container or address of an attachment, nor of one in the history; see `berth attachments` and `berth history`", arg)
}

// pasts returns what became of the attachments that a filter chooses: those that are attached,
// and then those that are gone, the last to end first.
func (a *app) pasts(ctx context.Context, f api.PastFilter) ([]api.Past, error) {
	list := []api.Past{}
	var end api.PastEnd
	asked, cancel := context.WithCancel(ctx)
	defer cancel()
	hangs := time.AfterFunc(a.patience, cancel) // unless the agent answers before
	defer hangs.Stop()
	err := a.ask(asked, func(ctx context.Context, c *client.Client) error {
		for p, err := range c.History(ctx, f, &end) {
			hangs.Stop()
			if err != nil {
				return err
			}
			list = append(list, p)
		}
		return nil
	})
	switch {
	case errors.Is(err, client.ErrAway):
		a.none("berth: no agent answers; this is what its files say")
		list, end, err = a.pastsAway(f)
	case err != nil && ctx.Err() == nil && (asked.Err() != nil || errors.Is(err, context.DeadlineExceeded)):
		a.none("berth: the agent does not answer in time; this is what its files say")
		list, end, err = a.pastsAway(f)
	}
	if end.Damaged > 0 {
		a.none("berth: the history has %s that cannot be read", count(end.Damaged, "record"))
	}
	if end.Lost > 0 {
		a.none("berth: the history lacks %s that the agent could not write; see its log", count(int(end.Lost), "record"))
	}
	return list, err
}

// matchingPast returns the attachments of a list that an argument names, as matching does.
func matchingPast(list []api.Past, arg string) []api.Past {
	all := make([]api.Attachment, len(list))
	for i, p := range list {
		all[i] = p.Attachment
	}
	ids := map[string]bool{}
	for _, at := range matching(all, arg) {
		ids[at.ID] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(p api.Past) bool { return !ids[p.Attachment.ID] })
}

// askers says who had an attachment released.
var askers = map[string]string{
	api.AskedDelete: "DEL", api.AskedQueued: "queued DEL", api.AskedGC: "GC", api.AskedRelease: "berth release",
	api.AskedFailed: "failed ADD", api.AskedReplaced: "another ADD", api.AskedGone: "pod gone",
}

// askedBy says who had an attachment released; "" if the attachment is not being released.
func askedBy(p api.Past) string {
	if p.Attachment.Releasing == nil && p.Queued == nil {
		return ""
	}
	return cmp.Or(askers[p.AskedBy], p.AskedBy, "unknown")
}

const pastTime = "2006-01-02 15:04:05"

func (a *app) local(t time.Time) time.Time { return t.In(a.now().Location()) }

func (a *app) pastTable(list []api.Past) *table {
	heading := []string{"ENDED", "OF", "ADDRESSES", "ATTACHED", "FOR", "RELEASED-BY"}
	if a.wide() {
		heading = append(heading, "ID", "NETWORK", "IFNAME", "CONTAINER", "HOST-VETH")
	}
	t := newTable(append(heading, "ERROR")...)
	for _, p := range list {
		at := p.Attachment
		ended, until := cell{"still " + at.State, stateInks[at.State]}, a.now()
		switch {
		case p.Ended != nil:
			ended, until = cell{text: a.local(*p.Ended).Format(pastTime)}, *p.Ended
		case waits(p) && p.CutOff != nil:
			ended, until = cell{"deletion queued, cut off", yellow}, *p.CutOff
		case waits(p):
			ended = cell{"deletion queued, not cut off", red}
		}
		of := podName(at.Pod)
		if of == "" {
			of = shortID(at.ContainerID)
		}
		row := []any{ended, of, strings.Join(at.Addresses, ","), a.local(at.Created).Format(pastTime), span(until.Sub(at.Created)), askedBy(p)}
		if a.wide() {
			row = append(row, at.ID, at.Network, at.Ifname, at.ContainerID, at.HostVeth)
		}
		t.row(append(row, cell{trouble(p), red})...)
	}
	return t
}

// trouble sums up what went wrong with an attachment.
func trouble(p api.Past) string {
	var all []string
	for _, text := range []string{p.Failed, p.CutError} {
		if text != "" {
			all = append(all, oneLine(errors.New(text)))
		}
	}
	for _, h := range p.Holds {
		if h.Failures > 0 {
			all = append(all, fmt.Sprintf("%s: failed %s: %s", h.What, count(h.Failures, "time"), oneLine(errors.New(h.Error))))
		}
	}
	return strings.Join(all, "; ")
}

// moment is a line of a timeline.
type moment struct {
	at   time.Time
	text string
}

// showPast prints an attachment's timeline.
func (a *app) showPast(p api.Past) {
	at := p.Attachment
	a.say("%s\n", a.ink(bold, strings.TrimSpace(subject(at)+"  "+strings.Join(at.Addresses, ", "))))
	a.fact("attachment", "%s, %s", at.ID, a.stateOf(p))
	if at.Pod != nil && at.Pod.UID != "" {
		a.fact("uid", "%s", at.Pod.UID)
	}
	a.fact("container", "%s, %s in %s", at.ContainerID, at.Ifname, at.Netns)
	a.fact("network", "%s, pool %s, mode %s, host veth %s", at.Network, at.Pool, at.Mode, at.HostVeth)
	for _, port := range at.HostPorts {
		a.fact("host port", "%s", port)
	}
	for _, m := range timeline(p) {
		a.say("  %s  %s\n", a.local(m.at).Format(pastTime+".000"), m.text)
	}
}

func (a *app) stateOf(p api.Past) string {
	if p.Ended != nil {
		return "gone"
	}
	state := stateCell(p.Attachment.State)
	text := a.ink(state.ink, state.text)
	switch {
	case !waits(p):
		return text
	case p.CutOff != nil:
		return text + ", deletion queued, cut off"
	}
	return text + ", deletion queued, " + a.ink(red, "not cut off")
}

// waits reports whether a deletion is queued that no agent has taken up.
func waits(p api.Past) bool { return p.Queued != nil && p.Attachment.Releasing == nil }

// timeline lists what became of an attachment, in the order of time.
func timeline(p api.Past) (all []moment) {
	at := p.Attachment
	add := func(t *time.Time, format string, args ...any) {
		if t != nil {
			all = append(all, moment{*t, fmt.Sprintf(format, args...)})
		}
	}
	add(&at.Created, "ADD")
	if p.Failed != "" {
		add(at.Releasing, "ADD failed: %s", oneLine(errors.New(p.Failed)))
	}
	add(p.Queued, "release promised: DEL, queued (no agent answered)")
	if p.CutByPlugin {
		add(p.CutOff, "cut off by the plugin")
	}
	switch {
	case p.Queued != nil:
		add(at.Releasing, "the agent took it up")
	case p.AskedBy != "":
		add(at.Releasing, "release promised: %s", askedBy(p))
	default:
		add(at.Releasing, "release promised, by a former run of the agent")
	}
	if p.CutError != "" {
		add(at.Releasing, "could not be cut off: %s", oneLine(errors.New(p.CutError)))
	}
	switch {
	case p.CutByPlugin:
	case p.Inherited(): // the pod was cut off by the time of the promise, if the former run answered the DEL
		add(p.CutOff, "cut off, at the latest")
	default:
		add(p.CutOff, "cut off")
	}
	for _, h := range p.Holds {
		if h.Failures > 0 {
			add(h.Since, "%s: not given back; tried %s, at last: %s", h.What, count(h.Failures, "time"), oneLine(errors.New(h.Error)))
		}
		add(h.Released, "%s: given back", h.What)
	}
	add(p.Ended, "gone; its addresses rest")
	slices.SortStableFunc(all, func(x, y moment) int { return x.at.Compare(y.at) })
	return all
}

// parseTime reads a time as people write it. The text means the whole span that it names: a day, a
// minute, a second or a fraction of a second, which begins at from and ends before until. A text that
// says how long ago something was means one moment: then until is zero.
func (a *app) parseTime(s string) (from, until time.Time, err error) {
	now := a.now()
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), until, nil
	}
	for _, as := range []struct {
		layout  string
		days    int
		unit    time.Duration
		ofToday bool
	}{
		{layout: time.RFC3339, unit: fraction(s)},
		{layout: "2006-01-02 15:04:05", unit: fraction(s)},
		{layout: "2006-01-02T15:04:05", unit: fraction(s)},
		{layout: "2006-01-02 15:04", unit: time.Minute},
		{layout: "2006-01-02", days: 1},
		{layout: "15:04:05", unit: fraction(s), ofToday: true},
		{layout: "15:04", unit: time.Minute, ofToday: true},
	} {
		t, err := time.ParseInLocation(as.layout, s, now.Location())
		if err != nil {
			continue
		}
		if as.ofToday {
			y, m, d := now.Date()
			on := func(day int) time.Time {
				return time.Date(y, m, day, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), now.Location())
			}
			if t = on(d); t.After(now) {
				t = on(d - 1)
			}
		}
		return t, t.AddDate(0, 0, as.days).Add(as.unit), nil
	}
	return from, until, fmt.Errorf("%.80q: expected a time, such as 14:05, \"2026-01-02 14:05\" or 2026-01-02T14:05:00Z, or how long ago, such as 90m", s)
}

// fraction returns the duration that one step of the last digit is, in a time with seconds: a
// nanosecond at least.
func fraction(s string) time.Duration {
	unit := time.Second
	if i := strings.IndexAny(s, ".,"); i >= 0 {
		for _, c := range s[i+1:] {
			if c < '0' || c > '9' || unit == time.Nanosecond {
				break
			}
			unit /= 10
		}
	}
	return unit
}

// writeHistory prints the history for a bundle, an attachment a line. The bundle cuts a part that is
// too large off at its end, where the oldest attachments are.
func (a *app) writeHistory(ctx context.Context, w io.Writer) error {
	list, err := a.pasts(ctx, api.PastFilter{})
	out := json.NewEncoder(w)
	for _, p := range list {
		if err := out.Encode(p); err != nil {
			return err
		}
	}
	return err
}
