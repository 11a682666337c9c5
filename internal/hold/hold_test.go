package hold

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

func TestParseID(t *testing.T) {
	seen := map[ID]bool{}
	for range 100 {
		id := NewID()
		if got, err := ParseID(string(id)); err != nil || got != id || seen[id] {
			t.Fatalf("a new id, %q (seen: %t), is read as %q, %v", id, seen[id], got, err)
		}
		seen[id] = true
	}
	for _, s := range []string{"", "abcdefghi", "abcdefghijk", "ABCDEFGHIJ", "abcdefghi1", "abcdefghi8", "abcdefgh-j", "äbcdefghi"} {
		if id, err := ParseID(s); err == nil {
			t.Errorf("%q is read as %q", s, id)
		}
	}
}

// wire is a spec that a program knows.
type wire struct {
	End string `json:"end"`
}

func (*wire) Kind() string     { return "wire" }
func (w *wire) String() string { return "wire " + w.End }

var wires = Kinds{{New: func() Spec { return new(wire) }}}

// The spec of an unknown kind is kept as it was written, for a program that knows the kind
// and can release the hold.
func TestDecode(t *testing.T) {
	const record = `{"id":"abcdefghij","parent":"bbbbbbbbbb","meta":{"sort":"x"},"names":[{"space":"address","name":"10.88.0.7"}],` +
		`"holds":[{"kind":"wire","spec":{"end":"a"}},{"kind":"later","spec":{"x":[1,2]}}],"releasing":"2026-01-02T03:04:05Z"}`
	o, err := wires.Decode([]byte(record))
	nettest.Must(t, err)
	w, known := o.Holds[0].Spec.(*wire)
	u, unknown := o.Holds[1].Spec.(*Unknown)
	if !known || w.End != "a" || !unknown || u.Kind() != "later" || o.Holds[0].Owner != o.ID || o.Holds[1].Owner != o.ID {
		t.Errorf("holds %v", o.Holds)
	}
	if h, ok := o.Find("later"); !ok || h.Spec != u || o.Wanted() || o.NamesIn("address")[0] != "10.88.0.7" {
		t.Errorf("owner %v", o)
	}
	// Earlier versions wrote a parent. It is now one of the owner's needs.
	want := strings.Replace(record, `"parent":"bbbbbbbbbb"`, `"needs":["bbbbbbbbbb"]`, 1)
	if raw, err := json.Marshal(o); err != nil || string(raw) != want {
		t.Errorf("written again it is %s, %v", raw, err)
	}
	if again, err := wires.Decode([]byte(want)); err != nil || !reflect.DeepEqual(again, o) {
		t.Errorf("read again it is %v, %v", again, err)
	}
	for raw, want := range map[string]string{
		`{`: "decoding owner",
		`{"id":"abcdefghij","holds":[{"spec":{}}]}`:                         "hold without a kind",
		`{"id":"abcdefghij","holds":[{"kind":"wire","spec":{"end":1}}]}`:    "decoding wire of owner abcdefghij",
		`{"id":"abcdefghij","holds":[{"kind":"wire","spec":"not a wire"}]}`: "decoding wire of owner abcdefghij",
	} {
		if o, err := wires.Decode([]byte(raw)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %q", raw, o, err, want)
		}
	}
}

// A clone has lists of its own, because the ledger hands clones out.
func TestClone(t *testing.T) {
	o := Owner{ID: NewID(), Names: []Name{{"address", "a"}}, Holds: []Hold{{Spec: &wire{"a"}}}}
	c := o.Clone()
	c.Names[0].Name, c.Holds[0].Spec = "b", &wire{"b"}
	if o.Names[0].Name != "a" || o.Holds[0].Spec.String() != "wire a" {
		t.Errorf("a change of the clone changed %v", o)
	}
}
