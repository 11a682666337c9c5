package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/internal/doctor"
)

// doctorView is what `berth doctor -o json` prints.
type doctorView struct {
	Verdicts map[doctor.Verdict]int `json:"verdicts"` // how many checks have each verdict
	Checks   []doctor.Result        `json:"checks"`
}

func (a *app) doctorCommand() *cobra.Command {
	var f places
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what is wrong with this node; exit code 1 when something is bad",
		Long: `Look at this node for what Berth needs and for what will hurt it: the kernel,
sysctls, other programs' rules and settings, mounts, the disk, the clock, the
agent's rights, and the plugin as the runtime sees it. Each check says what it
saw; where something is not right, also why that matters and how to fix it. A
check that could not look, or got no answer in time, is unknown. The exit code
is 0 when nothing is bad, and 1 otherwise.

The command needs no agent, and changes nothing. It runs its tests in a
temporary network namespace. Run it as root: otherwise much is unknown.`,
		Example: `  berth doctor
  berth doctor -o json | jq '.checks[] | select(.verdict == "bad")'
  berth doctor --runtime cri-o                  # as this runtime sees the plugin`,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.hangs(c.Context(), func(ctx context.Context) error { return a.doctor(ctx, f) })
		},
	}
	runtimeFlags(c, &f)
	return c
}

func (a *app) doctor(ctx context.Context, f places) error {
	binDir, confDir, blind := f.folders()
	n := doctor.New(a.dir(), binDir, confDir)
	n.Blind = blind
	return a.prescribe(doctor.Run(ctx, n, doctor.Checks()))
}

// prescribe prints results, and returns the command's error: exit code 1 if something is bad.
func (a *app) prescribe(all []doctor.Result) error {
	v := doctorView{Verdicts: doctor.Count(all), Checks: all}
	if err := a.print(v, func() { a.showDoctor(v) }); err != nil {
		return err
	}
	if v.Verdicts[doctor.Bad] > 0 {
		return exit(1)
	}
	return nil
}

var verdictInks = map[doctor.Verdict]ink{doctor.OK: green, doctor.Warn: yellow, doctor.Bad: red, doctor.Unknown: yellow}

// showDoctor prints a row for each check, and then what to do about those that are not right.
func (a *app) showDoctor(v doctorView) {
	t := newTable("VERDICT", "CHECK", "SEEN")
	for _, r := range v.Checks {
		t.row(cell{string(r.Verdict), verdictInks[r.Verdict]}, r.Name, r.Seen)
	}
	a.table(t)
	for _, r := range v.Checks {
		if r.Verdict == doctor.OK || r.Verdict == doctor.Unknown && r.Fix == "" {
			continue
		}
		a.say("\n%s\n", a.ink(verdictInks[r.Verdict], string(r.Verdict)+": "+r.Name))
		a.say("  why  %s\n", r.Why)
		if r.Fix != "" {
			a.say("  fix  %s\n", r.Fix)
		}
	}
	var parts []string
	for _, verdict := range doctor.Verdicts() {
		if n := v.Verdicts[verdict]; n > 0 {
			parts = append(parts, a.ink(verdictInks[verdict], fmt.Sprintf("%d %s", n, verdict)))
		}
	}
	a.say("\n%s: %s\n", count(len(v.Checks), "check"), strings.Join(parts, ", "))
}
