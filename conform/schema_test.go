package conform

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// object is what the tests read of an object in a JSON Schema.
type object struct {
	Properties map[string]json.RawMessage `json:"properties"`
	Required   []string                   `json:"required"`
}

// The schema has just the keys that reports have, and requires those that are always there.
func TestSchema(t *testing.T) {
	raw, err := os.ReadFile("report.schema.json")
	must(t, err)
	var schema struct {
		object
		Defs map[string]object `json:"$defs"`
	}
	must(t, json.Unmarshal(raw, &schema))
	for name, of := range map[string]struct {
		object
		typ reflect.Type
	}{
		"report":     {schema.object, reflect.TypeFor[Report]()},
		"result":     {schema.Defs["result"], reflect.TypeFor[Result]()},
		"known":      {schema.Defs["known"], reflect.TypeFor[Known]()},
		"plugin":     {schema.Defs["plugin"], reflect.TypeFor[PluginInfo]()},
		"parameters": {schema.Defs["parameters"], reflect.TypeFor[Parameters]()},
	} {
		var keys, always []string
		for i := range of.typ.NumField() {
			key, optional, _ := strings.Cut(of.typ.Field(i).Tag.Get("json"), ",")
			if keys = append(keys, key); optional == "" {
				always = append(always, key)
			}
		}
		if has := slices.Sorted(maps.Keys(of.Properties)); !slices.Equal(has, slices.Sorted(slices.Values(keys))) {
			t.Errorf("%s: the schema has %q, and the type %q", name, has, keys)
		}
		if has := slices.Sorted(slices.Values(of.Required)); !slices.Equal(has, slices.Sorted(slices.Values(always))) {
			t.Errorf("%s: the schema requires %q, and always there are %q", name, has, always)
		}
	}
	for _, word := range []string{`"must"`, `"should"`, `"own"`, `"pass"`, `"fail"`, `"leak"`, `"flaky"`, `"unsupported"`} {
		if !strings.Contains(string(raw), word) {
			t.Errorf("the schema lacks %s", word)
		}
	}
}
