package server

import (
	"context"
	"regexp"
	"testing"

	"github.com/berth-net/berth/internal/cni"
)

// The log names the thing that a failed request was about, and says how long the request took.
// To delete what is not there is no failure.
func TestFailedRequestIsSaid(t *testing.T) {
	d := startToy(t)
	d.Open()
	for _, tt := range []struct {
		code uint
		want string // "": nothing
	}{
		{cni.CodeInternal, `level=WARN msg="request failed" verb=make status=500 code=999 error="the head: is off" toy=bear`},
		{cni.CodeNetns, `level=INFO msg="request failed" verb=make status=400 code=102 error="the head: is off" toy=bear`},
		{cni.CodeUnknown, ""},
	} {
		d.hook = func(context.Context, string, When) error { return cni.Errorf(tt.code, "the head", "is off") }
		d.said.take()
		wantCode(t, d.makeOne(t.Context()), tt.code, "is off")
		want := regexp.MustCompile(regexp.QuoteMeta(tt.want) + ` took=[1-9][0-9.]*(µs|ms|s)\n$`)
		if said := d.said.take(); tt.want == "" && said != "" || tt.want != "" && !want.MatchString(said) {
			t.Errorf("code %d: the log says %q, want %q", tt.code, said, want)
		}
	}
}
