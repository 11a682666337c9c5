package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/doctor"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/show"
)

// awayView is what is known without an agent.
type awayView struct {
	Ledger      string         `json:"ledger"`                // path
	Error       string         `json:"error,omitempty"`       // why the ledger cannot be read
	Size        int64          `json:"size,omitempty"`        // bytes
	Attachments map[string]int `json:"attachments,omitempty"` // by state
	Boot        string         `json:"boot,omitempty"`        // id of the boot that the records are from
	ThisBoot    bool           `json:"thisBoot,omitempty"`    // that boot is the present one
	Next        string         `json:"next"`                  // what to do
	// Deletions counts the deletions that wait in the plugin's queue.
	Deletions api.DeletionCount `json:"deletions"`
}

// look reads the ledger and the queue of deletions without an agent.
func (a *app) look() awayView {
	s, err := deletions.Look(a.dir())
	v := a.lookAtLedger(s.Pending)
	v.Deletions = show.DeletionCount(s, err)
	return v
}

// lookAtLedger reads the ledger. An attachment for which a deletion is in the queue counts as
// releasing.
func (a *app) lookAtLedger(queue []deletions.Entry) awayView {
	v := awayView{Ledger: a.dir().Ledger(), Attachments: map[string]int{}, Next: a.start()}
	s, err := ledger.Read(v.Ledger, kinds)
	var damaged *ledger.DamagedError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		v.Error = "there is none: no agent has run here yet"
		if a.ranHere() {
			v.Error = "it is missing, although an agent has run here"
			v.Next = "put the ledger back, or " + v.Next + "; if the ledger's pods are left, berthd says so and what to do"
		}
		return v
	case errors.Is(err, ledger.ErrLocked):
		v.Error = "an agent has it open"
		v.Next = "the agent is starting, or hangs: try again, look at its log (journalctl -u berthd), or restart it"
		return v
	case errors.Is(err, fs.ErrPermission):
		v.Error, v.Next = err.Error(), "run this as root"
		return v
	case errors.As(err, &damaged):
		v.Error, v.Next = err.Error(), "berthd does not start with a damaged ledger: put an intact copy in its place, or run "+a.berthd("--rebuild-ledger")
		return v
	case errors.Is(err, ledger.ErrNewer):
		v.Error, v.Next = err.Error(), "a newer berthd wrote the ledger, and this one does not start with it: install that version"
		return v
	case err != nil:
		v.Error, v.Next = err.Error(), "berthd does not start with this ledger: put an intact copy in its place"
		return v
	case s.Size == 0 && a.ranHere():
		v.Error = "it is empty, although an agent has run here"
		v.Next = "put an intact copy in its place, or " + v.Next + "; if the ledger's pods are left, berthd says so and what to do"
		return v
	}
	v.Size, v.Boot, v.ThisBoot = s.Size, s.Epoch.Boot, s.Epoch.Boot == bootID()
	for _, o := range s.Owners {
		switch r, ok, err := attachment.Decode(o); {
		case err != nil || !ok:
		case wanted(o, r, queue):
			v.Attachments[api.StateAttached]++
		default:
			v.Attachments[api.StateReleasing]++
		}
	}
	return v
}

// ranHere reports whether an agent has left anything in its state folder or, since the
// boot, in its run folder: somebody may have emptied the state folder while pods run.
func (a *app) ranHere() bool {
	_, err := os.Stat(a.dir().Instance())
	left, _ := os.ReadDir(a.dir().Run())
	return err == nil || len(left) > 0
}

// start says how to start the agent, and first what keeps it from starting, as far as its
// configuration decides.
func (a *app) start() string {
	start := "systemctl start berthd"
	if a.root != "/" {
		start = a.berthd()
	}
	if err := doctor.Refused(a.dir()); err != nil {
		return fmt.Sprintf("mend the configuration, and try it with %s: %s; then start the agent: %s", a.berthd("--check-config"), oneLine(err), start)
	}
	return "start the agent: " + start
}

// berthd returns the agent's command line for this root.
func (a *app) berthd(flags ...string) string {
	words := []string{"berthd"}
	if a.root != "/" {
		words = append(words, "--root", a.root)
	}
	return strings.Join(append(words, flags...), " ")
}

// bootID returns the kernel's id of this boot; "" if it cannot be read.
func bootID() string {
	raw, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw))
}

func (a *app) showAway(v statusView) {
	w := v.Away
	a.fact("berthd", "%s: %s", a.ink(red, "away"), v.Error)
	if w.Error != "" {
		a.fact("ledger", "%s: %s", w.Ledger, a.ink(red, w.Error))
		a.showWaiting(w)
		a.fact("next", "%s", w.Next)
		return
	}
	a.fact("ledger", "%s, %s, read without the agent", w.Ledger, size(w.Size))
	a.fact("attachments", "%s", a.stateCounts(w.Attachments))
	a.showWaiting(w)
	a.showSpares(w.Deletions, w.Attachments)
	switch {
	case w.Boot == "":
		a.fact("epoch", "none yet")
	case w.ThisBoot:
		a.fact("epoch", "this boot: attached pods keep their network; until the agent runs, no other pod is attached, and the plugin cuts off and queues each pod that is deleted")
	default:
		a.fact("epoch", "an earlier boot: these pods are gone, and the agent gives back what they had when it starts")
	}
	a.fact("next", "%s", w.Next)
}

// showWaiting says what an agent that is away will do when it starts.
func (a *app) showWaiting(w *awayView) {
	n := w.Deletions
	if n.Attachments > 0 {
		a.fact("deletions", "%s's next start, %s; see `berth owed`", a.queuedFor(n), a.cutOff(n))
	}
	if n.Damaged > 0 {
		a.fact("damaged", "%s in %s; see `berth owed`", a.ink(red, count(n.Damaged, "file")+" that cannot be read"), deletions.Path(a.dir()))
	}
	if n.Error != "" {
		a.fact("deletions", "%s", a.ink(red, "this count is incomplete: "+oneLine(errors.New(n.Error))))
	}
}
