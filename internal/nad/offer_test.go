package nad_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nad"
)

// What is offered goes to the plugins that declare the capability, beside what they have and in the place of another value.
func TestOffer(t *testing.T) {
	for _, test := range []struct{ about, config, want string }{
		{"nothing is declared", `{"type":"x"}`, `{"type":"x"}`},
		{"another is declared", `{"type":"x","capabilities":{"mac":true,"CNIDeviceInfoFile":false}}`, `{"type":"x","capabilities":{"mac":true,"CNIDeviceInfoFile":false}}`},
		{"declared", `{"type":"x","capabilities":{"CNIDeviceInfoFile":true}}`, `{"type":"x","capabilities":{"CNIDeviceInfoFile":true},"runtimeConfig":{"CNIDeviceInfoFile":"/a\"b"}}`},
		{"beside others", `{"capabilities":{"CNIDeviceInfoFile":true},"runtimeConfig":{"mac":"m"},"type":"x"}`, `{"capabilities":{"CNIDeviceInfoFile":true},"runtimeConfig":{"mac":"m","CNIDeviceInfoFile":"/a\"b"},"type":"x"}`},
		{"another value", `{"capabilities":{"CNIDeviceInfoFile":true},"runtimeConfig":{"CNIDeviceInfoFile":"/o"}}`, `{"capabilities":{"CNIDeviceInfoFile":true},"runtimeConfig":{"CNIDeviceInfoFile":"/a\"b"}}`},
	} {
		given := []json.RawMessage{json.RawMessage(`{"type":"first"}`), json.RawMessage(test.config)}
		got, err := nad.Offer(given, nad.CapabilityInfoFile, `/a"b`)
		if err != nil || string(got[0]) != `{"type":"first"}` || string(got[1]) != test.want || string(given[1]) != test.config {
			t.Errorf("%s: %s, %v; want %s", test.about, got, err, test.want)
		}
	}
	for config, want := range map[string]string{
		`[]`:                   "plugin 1",
		`{"capabilities":[1]}`: "capabilities",
		`{"capabilities":{"CNIDeviceInfoFile":true},"runtimeConfig":1}`: "runtimeConfig",
	} {
		if _, err := nad.Offer([]json.RawMessage{json.RawMessage(config)}, nad.CapabilityInfoFile, "/a"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", config, err, want)
		}
	}
}
