package beside

import (
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// A difference that no row explains, and a row that explains none, fail a comparison; others do not.
func TestTable(t *testing.T) {
	rows := []Difference{{Pods: []string{"a", "b"}, Field: "status", Why: "the reason"}, {Field: "result", Why: "of any pod"}, {Pods: []string{"d"}, Field: Refused, Why: "d"}}
	fields := []string{Refused, "status", "result"}
	original, own := Look{"status": "1", "result": "1"}, Look{"status": "2", "result": "2"}
	for name, c := range map[string]struct {
		compare func(*Table, testing.TB)
		says    string // "": nothing fails
	}{
		"all": {func(t *Table, test testing.TB) {
			t.Compare(test, "a", fields, original, own)
			t.Compare(test, "b", fields, original, own)
			t.Compare(test, "d", fields, Look{Refused: "false", "status": "1"}, Look{Refused: "true"})
			t.Occurred(test)
		}, ""},
		"unknown": {func(t *Table, test testing.TB) { t.Compare(test, "c", fields, original, own) }, "c: status"},
		"one pod of a row": {func(t *Table, test testing.TB) {
			t.Compare(test, "a", fields, original, own)
			t.Compare(test, "d", fields, Look{Refused: "false"}, Look{Refused: "true"})
			t.Occurred(test)
		}, `no difference in "status" of "b" any more: the reason`},
		"no pod at all": {func(t *Table, test testing.TB) { t.Occurred(test) }, `no difference in "result" of "" any more`},
		"refused by both": {func(t *Table, test testing.TB) {
			t.Compare(test, "e", fields, Look{Refused: "true", "status": "1"}, Look{Refused: "true", "status": "2"})
		}, "e: status"},
	} {
		t.Run(name, func(t *testing.T) {
			went := nettest.Record(t, func(test testing.TB) { c.compare(NewTable(rows), test) })
			if went.Failed != (c.says != "") || !strings.Contains(went.Said, c.says) {
				t.Errorf("it failed: %v, and said %q; expected %q", went.Failed, went.Said, c.says)
			}
		})
	}
}

// Plain leaves what pods ask for, and texts in which nothing is random.
func TestPlain(t *testing.T) {
	for text, plain := range map[string]string{
		"mac 0a:58:0a:01:02:03 of veth0123abcd":                      "mac MAC of LINK",
		"mac " + Asked + "00:07":                                     "mac " + Asked + "00:07",
		"bwp0123456789ab and vethernet":                              "LINK and vethernet",
		`{"sandbox": "/run/netns/cni-1"}`:                            `{"sandbox": "NETNS"}`,
		"route inet6 unicast fd00:50:7::1/128 dev eth0 10.50.0.1/32": "route inet6 unicast fd00:50:7::1/128 dev eth0 10.50.0.1/32",
	} {
		if got := Plain(text, "/run/netns/cni-1"); got != plain {
			t.Errorf("%q becomes %q, want %q", text, got, plain)
		}
	}
	if got := Plain("veth0 10.0.0.1", ""); got != "veth0 10.0.0.1" {
		t.Errorf("without a namespace: %q", got)
	}
	if got := JSON([]byte(`{"b":1,"a":[2]}`)); got != "{\n \"a\": [\n  2\n ],\n \"b\": 1\n}" {
		t.Errorf("JSON: %q", got)
	}
}
