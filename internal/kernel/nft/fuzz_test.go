package nft

import (
	"reflect"
	"testing"

	"github.com/google/nftables/expr"
)

// samples are the expressions of Berth's rules, and some that Berth does not use.
func samples() []expr.Any {
	list := []expr.Any{
		&expr.Verdict{Kind: expr.VerdictJump, Chain: "elsewhere"},
		&expr.Immediate{Register: reg, Data: []byte{1, 2, 3, 4}},
		&expr.Counter{},
	}
	list = append(list, dropGroup("iifgroup", 1, 2).exprs...)
	for _, c := range sample().table(0).chains {
		for _, r := range c.rules {
			list = append(list, r.exprs...)
		}
	}
	return list
}

// The package reads a written expression as the same expression. An expression that Berth does not use
// equals none of Berth's.
func TestExpression(t *testing.T) {
	for _, e := range samples() {
		var r request
		raw := r.expression(e)
		if r.err != nil {
			t.Fatal(r.err)
		}
		got, name, err := expression(raw)
		if err != nil {
			t.Errorf("%#v: %v", e, err)
		}
		want := e
		switch e.(type) {
		case *expr.Counter:
			want = nil
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %#v came back as %#v", name, e, got)
		}
	}
}

// Whatever is in an expression, decoding it does not panic.
func FuzzExpression(f *testing.F) {
	for _, e := range samples() {
		f.Add(new(request).expression(e))
	}
	f.Fuzz(func(_ *testing.T, raw []byte) { expression(raw) })
}

// commentOf reads a comment that Berth wrote as Berth wrote it, and returns something else for any
// other user data.
func FuzzComment(f *testing.F) {
	f.Add(comment("ownerowner"))
	f.Add([]byte{0, 200, 'x'})
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if s := commentOf(raw); s != "" && string(comment(s)) != string(raw) && s[0] != '"' {
			t.Errorf("%q is read as %q", raw, s)
		}
	})
}
