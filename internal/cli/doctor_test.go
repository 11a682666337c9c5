package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/internal/doctor"
)

// The output for each verdict, and the exit code.
func TestDoctorGolden(t *testing.T) {
	well := doctor.Result{Name: "agent", Verdict: doctor.OK, Seen: "serving, version 1, pid 2", Why: "without its agent no pod can be attached"}
	all := []doctor.Result{
		well,
		{Name: "capabilities", Verdict: doctor.Unknown, Seen: "no agent runs that could be looked at", Why: "the agent needs these rights for pods"},
		{Name: "forwarding", Verdict: doctor.Bad, Seen: "net.ipv4.ip_forward = 0", Why: "a node that does not forward drops what its pods send. All of it", Fix: "sysctl -w net.ipv4.ip_forward=1"},
		{Name: "sync", Verdict: doctor.Warn, Seen: "fdatasync takes 12ms", Why: "ADD and DEL wait for it", Fix: "iostat -x 1"},
	}
	for _, c := range []struct {
		name, output string
		results      []doctor.Result
		code         exit
	}{
		{"doctor", "", all, 1}, {"doctor.json", "json", all, 1},
		{"doctor.well", "", []doctor.Result{well, all[1], all[3]}, 0}, {"doctor.well.json", "json", []doctor.Result{well}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			a := &app{stdout: &out, output: c.output}
			err := a.prescribe(c.results)
			if code := exit(0); c.code == 0 && err != nil || c.code != 0 && (!errors.As(err, &code) || code != c.code) {
				t.Errorf("%v, want exit code %d", err, c.code)
			}
			file := filepath.Join("testdata/golden", c.name)
			if update {
				must(t, os.WriteFile(file, []byte(out.String()), 0o644))
			}
			want, err := os.ReadFile(file)
			must(t, err)
			if diff := cmp.Diff(string(want), out.String()); diff != "" {
				t.Errorf("-golden +now:\n%s", diff)
			}
		})
	}
}
