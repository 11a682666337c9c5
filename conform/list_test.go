package conform

import (
	"encoding/json"
	"net"
	"strings"
	"testing"
)

func TestParseListRefuses(t *testing.T) {
	for list, want := range map[string]string{
		`{`:                                    "unexpected end",
		`{"cniVersion": "1.0.0"}`:              `"name" is missing`,
		`{"name": "n", "plugins": [{}]}`:       `"cniVersion" is missing`,
		`{"name": "n", "cniVersion": "1.0.0"}`: `"plugins" is missing`,
		`{"name": "n", "cniVersion": "1.0.0", "plugins": [{"type": "a"}, {}]}`: `plugin 1 has no "type"`,
	} {
		if _, err := parseList([]byte(list)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, not an error with %q", list, err, want)
		}
	}
}

// Conf derives a plugin's configuration as a runtime does (CNI 1.1, section 3).
func TestConf(t *testing.T) {
	l, err := parseList([]byte(`{"name": "n", "cniVersion": "1.0.0", "plugins": [
		{"type": "a", "own": {"x": [1, 2]}, "capabilities": {"mac": true, "ips": false}}]}`))
	must(t, err)
	for _, c := range []struct {
		keys map[string]any
		want string
	}{
		{nil, `{"cniVersion":"1.0.0","name":"n","own":{"x":[1,2]},"type":"a"}`},
		{map[string]any{"cniVersion": "0.4.0", "own": nil, "prevResult": json.RawMessage(`{}`)},
			`{"cniVersion":"0.4.0","name":"n","prevResult":{},"type":"a"}`},
	} {
		if got := string(l.Conf(0, c.keys)); got != c.want {
			t.Errorf("with %v: %s, not %s", c.keys, got, c.want)
		}
	}
	args := map[string]any{"mac": "00:11:22:33:44:55", "ips": []string{"10.0.0.1"}, "portMappings": nil}
	if got := l.Plugins[0].runtimeConfig(args); len(got) != 1 || got["mac"] == nil {
		t.Errorf("runtimeConfig is %v, and only mac is declared", got)
	}
	if got := l.Plugins[0].runtimeConfig(map[string]any{"ips": nil}); got != nil {
		t.Errorf("runtimeConfig is %v, and nothing of it is declared", got)
	}
}

// In another version, the configurations inside of a plugin's are in that version, too, and a prevResult stays as it is.
func TestConfOfMetaPlugin(t *testing.T) {
	l, err := parseList([]byte(`{"name": "n", "cniVersion": "1.0.0", "plugins": [{"type": "meta", "big": 12345678901234567890,
		"delegates": [{"cniVersion": "0.3.1", "type": "a"}, {"cniVersion": "1.0.0", "plugins": [{"type": "b"}]}]}]}`))
	must(t, err)
	const prev = `{"cniVersion":"1.0.0"}`
	for version, want := range map[string]string{
		"1.0.0": `"delegates":[{"cniVersion":"0.3.1","type":"a"},{"cniVersion":"1.0.0","plugins":[{"type":"b"}]}]`,
		"1.1.0": `"delegates":[{"cniVersion":"1.1.0","type":"a"},{"cniVersion":"1.1.0","plugins":[{"type":"b"}]}]`,
	} {
		got := string(l.Conf(0, map[string]any{"cniVersion": version, "prevResult": json.RawMessage(prev)}))
		if !strings.Contains(got, want) || !strings.Contains(got, `"prevResult":`+prev) || !strings.Contains(got, "12345678901234567890") {
			t.Errorf("%s: %s", version, got)
		}
	}
}

// An address of an interface that stands in the list is every pod's.
func TestListNames(t *testing.T) {
	l, err := parseList([]byte(`{"name": "n", "cniVersion": "1.0.0", "plugins": [{"type": "a", "ipam": {"type": "static",
		"addresses": [{"address": "10.1.0.7/24"}, {"address": "fd00::7"}], "subnet": "10.2.0.0/24"}}]}`))
	must(t, err)
	for addr, want := range map[string]bool{"10.1.0.7": true, "fd00::7": true, "10.2.0.0": false, "10.1.0.0": false, "10.1.0.8": false} {
		if got := l.names(net.ParseIP(addr)); got != want {
			t.Errorf("%s: %t", addr, got)
		}
	}
}

func TestOlder(t *testing.T) {
	for _, pair := range [][2]string{{"", "0.4.0"}, {"0.4.0", "1.0.0"}, {"0.9.9", "0.10.0"}, {"1.0", "1.0.1"}} {
		if !older(pair[0], pair[1]) || older(pair[1], pair[0]) || older(pair[0], pair[0]) {
			t.Errorf("%q and %q are not in this order", pair[0], pair[1])
		}
	}
}
