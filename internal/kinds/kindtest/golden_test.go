package kindtest

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// richSpec has fields of several sorts.
type richSpec struct {
	Addr  netip.Addr `json:"addr"`
	Inner []inner    `json:"inner,omitempty"`
	Raw   []byte     `json:"raw"`
	Opt   *inner     `json:"opt,omitempty"`
	Lost  string     `json:"-"`
}

type inner struct {
	N int `json:"n"`
}

func (*richSpec) Kind() string     { return "rich" }
func (s *richSpec) String() string { return "rich " + s.Addr.String() }

// hiddenSpec has a field that no record can hold.
type hiddenSpec struct{ hidden int }

func (*hiddenSpec) Kind() string     { return "hidden" }
func (s *hiddenSpec) String() string { return "hidden" }

func rich() *richSpec {
	return &richSpec{Addr: netip.MustParseAddr("10.88.0.7"), Inner: []inner{{1}}, Raw: []byte{0, 1}, Opt: &inner{2}}
}

func TestGolden(t *testing.T) {
	const file = `{
	"kind": "rich",
	"spec": {
		"addr": "10.88.0.7",
		"inner": [
			{
				"n": 1
			}
		],
		"raw": "AAE=",
		"opt": {
			"n": 2
		}
	}
}
`
	with := func(change func(*richSpec)) hold.Spec {
		s := rich()
		s.Lost = "set"
		change(s)
		return s
	}
	for _, test := range []struct {
		name    string
		example hold.Spec
		file    string // "": there is no file
		says    string // what the failure says
	}{
		{"no example", nil, file, "gives no Example"},
		{"no file", with(func(*richSpec) {}), "", "-update writes it"},
		{"not recorded", with(func(*richSpec) {}), file, "Lost:set"},
		{"zero field", with(func(s *richSpec) { s.Raw = nil }), file, "leaves out rich.Raw"},
		{"zero field in a list", with(func(s *richSpec) { s.Inner[0].N = 0 }), file, "leaves out rich.Inner[0]"},
		{"zero field behind a pointer", with(func(s *richSpec) { *s.Opt = inner{} }), file, "leaves out rich.Opt.N"},
		{"hidden field", &hiddenSpec{hidden: 1}, file, "hidden.hidden (not exported)"},
		{"field renamed", with(func(*richSpec) {}), strings.Replace(file, "addr", "address", 1), "the JSON differs"},
		{"file damaged", with(func(*richSpec) {}), file[:20], "unexpected end"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if test.file != "" {
				nettest.Must(t, os.Mkdir("testdata", 0o700))
				nettest.Must(t, os.WriteFile("testdata/rich.json", []byte(test.file), 0o600))
			}
			k := Kind{Kind: hold.Kind{New: func() hold.Spec { return &richSpec{} }}, Example: test.example}
			r := nettest.Record(t, func(t testing.TB) { golden(t, k) })
			if !r.Failed || !strings.Contains(r.Said, test.says) {
				t.Errorf("golden says %q, without %q", r.Said, test.says)
			}
		})
	}
}

func TestGoldenUpdate(t *testing.T) {
	t.Chdir(t.TempDir())
	before := *update
	defer func() { *update = before }()
	k := kind(t, false)
	for _, *update = range []bool{true, false} {
		if r := nettest.Record(t, func(t testing.TB) { golden(t, k) }); r.Failed {
			t.Errorf("update %t: %s", *update, r.Said)
		}
	}
}
