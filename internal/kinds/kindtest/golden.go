package kindtest

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

var update = flag.Bool("update", false, "write the golden files of kinds")

// golden: ledgers of older agents have specs in the form of this JSON. So fields may be added,
// but never renamed or removed.
func golden(t testing.TB, k Kind) {
	t.Helper()
	if k.Example == nil {
		t.Fatal("the kind's test gives no Example")
	}
	if zero := zeroFields(reflect.ValueOf(k.Example), k.Example.Kind()); len(zero) > 0 {
		t.Fatalf("the Example leaves out %s", strings.Join(zero, ", "))
	}
	raw, err := json.MarshalIndent(hold.Hold{Spec: k.Example}, "", "\t")
	nettest.Must(t, err)
	raw = append(raw, '\n')
	file := filepath.Join("testdata", k.Name()+".json")
	if *update {
		nettest.Must(t, os.MkdirAll("testdata", 0o755))
		nettest.Must(t, os.WriteFile(file, raw, 0o644))
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("no golden file (go test -update writes it): %v", err)
	}
	if !bytes.Equal(raw, want) {
		t.Errorf("the JSON differs from %s (-file +now):\n%s", file, cmp.Diff(string(want), string(raw)))
	}
	var stored struct {
		Spec json.RawMessage `json:"spec"`
	}
	if err := json.Unmarshal(want, &stored); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	spec := k.New()
	if err := json.Unmarshal(stored.Spec, spec); err != nil {
		t.Fatalf("decoding %s: %v", file, err)
	}
	if !same(spec, k.Example) {
		t.Errorf("decoding %s gives %+v, not %+v", file, fields(spec), fields(k.Example))
	}
}

// fields returns the struct behind a spec: the struct prints its fields, whereas the spec prints its
// String.
func fields(s hold.Spec) any { return reflect.Indirect(reflect.ValueOf(s)).Interface() }

// zeroFields names the values at or below v that are zero, and the fields that are not
// exported, which no ledger records.
func zeroFields(v reflect.Value, at string) []string {
	if v.IsZero() {
		return []string{at}
	}
	v = reflect.Indirect(v)
	var zero []string
	switch _, text := v.Interface().(encoding.TextMarshaler); {
	case text: // a text such as an address is one value, whatever fields its type has
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		for i := range v.Len() {
			zero = append(zero, zeroFields(v.Index(i), fmt.Sprintf("%s[%d]", at, i))...)
		}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			name := at + "." + field.Name
			if !field.IsExported() {
				zero = append(zero, name+" (not exported)")
				continue
			}
			zero = append(zero, zeroFields(v.Field(i), name)...)
		}
	}
	return zero
}
