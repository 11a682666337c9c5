package deletions

import (
	"errors"
	"hash/crc32"
	"os"
	"reflect"
	"strings"
	"testing"
)

// A newer agent reads what an older plugin has written.
func TestForm(t *testing.T) {
	const file = "testdata/version1.json"
	want, err := os.ReadFile(file)
	must(t, err)
	got, err := example.encode()
	must(t, err)
	if string(got) != string(want) {
		t.Errorf("the form has changed; %s:\n%sgot:\n%s", file, want, got)
	}
	if r, err := parse(want); err != nil || !reflect.DeepEqual(r, example) {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestEncode(t *testing.T) {
	least := Record{Network: "n", Container: "c", Ifname: "e", Boot: "b", Started: 1}
	odd := example
	odd.Reason = "\"quoted\"\\ \x00 \x7f \u2028 \u00e9 \xff"
	oddRead := odd
	oddRead.Reason = strings.ReplaceAll(odd.Reason, "\xff", "\ufffd")
	long := func(reason, netns, address int) Record {
		r := example
		r.Reason, r.Netns = strings.Repeat("r", reason), strings.Repeat("n", netns)
		r.Addresses = []string{strings.Repeat("a", address)}
		return r
	}
	without := func(r Record, reason, netns, addresses bool) Record {
		if reason {
			r.Reason = ""
		}
		if netns {
			r.Netns = ""
		}
		if addresses {
			r.Addresses = nil
		}
		return r
	}
	for name, test := range map[string]struct{ in, want Record }{
		"least":               {least, least},
		"everything":          {example, example},
		"odd text":            {odd, oddRead},
		"long":                {long(1000, 1000, 1000), long(1000, 1000, 1000)},
		"too long a reason":   {long(5000, 1000, 1000), without(long(5000, 1000, 1000), true, false, false)},
		"reason and netns":    {long(5000, 5000, 1000), without(long(5000, 5000, 1000), true, true, false)},
		"everything too long": {long(5000, 5000, 5000), without(example, true, true, true)},
		"escapes count":       {long(0, 3000, 0), long(0, 3000, 0)},
		"together too long":   {long(2000, 2000, 100), without(long(2000, 2000, 100), true, false, false)},
	} {
		raw, err := test.in.encode()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(raw) > MaxSize {
			t.Errorf("%s: %d bytes", name, len(raw))
		}
		if got, err := parse(raw); err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %v\ngot  %+v\nwant %+v", name, err, got, test.want)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	for name, change := range map[string]func(*Record){
		"no network":    func(r *Record) { r.Network = "" },
		"no container":  func(r *Record) { r.Container = "" },
		"no ifname":     func(r *Record) { r.Ifname = "" },
		"no boot":       func(r *Record) { r.Boot = "" },
		"no time":       func(r *Record) { r.Started = 0 },
		"negative time": func(r *Record) { r.Started = -1 },
		"too long":      func(r *Record) { r.Container = strings.Repeat("c", MaxSize) },
	} {
		r := example
		change(&r)
		if err := Write("/nonexistent", r); err == nil || errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// parse notices one changed byte, wherever it is, and a missing end, however short, except
// for the newline at the end.
func TestParseDamage(t *testing.T) {
	raw, err := example.encode()
	must(t, err)
	raw = raw[:len(raw)-1]
	for i := range raw {
		for _, bit := range []byte{1, 0x20, 0x80} {
			damaged := append([]byte(nil), raw...)
			damaged[i] ^= bit
			if r, err := parse(damaged); err == nil && !reflect.DeepEqual(r, example) {
				t.Errorf("byte %d, bit %#x: %+v", i, bit, r)
			} else if err == nil && !strings.EqualFold(string(damaged), string(raw)) { // the checksum's letters
				t.Errorf("byte %d, bit %#x goes unnoticed", i, bit)
			}
		}
		if _, err := parse(raw[:i]); err == nil {
			t.Errorf("%d of %d bytes go unnoticed", i, len(raw))
		}
	}
	for _, more := range []string{"x", " }", "\x00", string(raw), strings.Repeat(" ", MaxSize)} {
		if _, err := parse(append(raw[:len(raw):len(raw)], more...)); err == nil {
			t.Errorf("%.10q behind it goes unnoticed", more)
		}
	}
}

// sealed returns a text with the right checksum in place of its last brace.
func sealed(text string) []byte { return seal([]byte(strings.TrimSuffix(text, "}"))) }

func TestParse(t *testing.T) {
	const head = `{"version":1,"network":"n","container":"c","ifname":"e","boot":"b","started":7,"cut":false`
	if r, err := parse(sealed(head + `,"later":[1,{}]}`)); err != nil || r.Started != 7 || r.Cut {
		t.Errorf("a key of a later program: %+v, %v", r, err)
	}
	if _, err := parse(sealed(strings.Replace(head, `:1,`, `:2,`, 1) + "}")); !errors.Is(err, ErrVersion) {
		t.Errorf("another version: %v", err)
	}
	raw := sealed(head + "}")
	raw[20] ^= 1
	if _, err := parse(raw); !errors.Is(err, ErrChecksum) {
		t.Errorf("another content: %v", err)
	}
	for name, text := range map[string]string{
		"no version":      strings.Replace(head, `"version"`, `"v"`, 1),
		"started a text":  strings.Replace(head, `7`, `"7"`, 1),
		"started too far": strings.Replace(head, `7`, `9223372036854775808`, 1),
		"cut a text":      strings.Replace(head, `false`, `"false"`, 1),
		"cut a number":    strings.Replace(head, `false`, `0`, 1),
		"no key":          strings.Replace(head, `"network"`, `"n"`, 1),
		"ifname a number": strings.Replace(head, `"e"`, `1`, 1),
		"twice":           head + `,"network":"n"`,
		"address":         head + `,"addresses":[1]`,
		"no list":         head + `,"addresses":"10.0.0.1"`,
		"no object":       `[`,
		"a NUL":           head + ",\x00",
	} {
		if r, err := parse(sealed(text + "}")); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestChecksum(t *testing.T) {
	table := crc32.MakeTable(crc32.Castagnoli)
	for _, text := range []string{"", "123456789", whole} {
		if got, want := crc32c([]byte(text)), crc32.Checksum([]byte(text), table); got != want {
			t.Errorf("%q: %#x, not %#x", text, got, want)
		}
	}
}

// If parse reads something as a deletion, encode writes the same deletion.
func FuzzParse(f *testing.F) {
	for _, r := range []Record{example, {Network: "n", Container: "c", Ifname: "e", Boot: "b", Started: 1}} {
		raw, err := r.encode()
		must(f, err)
		f.Add(raw, false)
		f.Add(raw[:len(raw)-1-sumSize], true)
	}
	f.Add([]byte(`{"version":1,"network":"n"`), true)
	f.Fuzz(func(t *testing.T, raw []byte, sum bool) {
		if sum { // which no fuzzer finds
			raw = seal(raw)
		}
		r, err := parse(raw)
		if err != nil {
			return
		}
		if len(r.append(nil)) > MaxSize {
			return // escapes made it longer
		}
		again, err := r.encode()
		if err != nil {
			t.Fatalf("%q is read as %+v, which cannot be written: %v", raw, r, err)
		}
		if back, err := parse(again); err != nil || !reflect.DeepEqual(back, r) {
			t.Fatalf("%q is read as %+v, and written as %q: %+v, %v", raw, r, again, back, err)
		}
	})
}
