package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the machine may have none

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/deploy"
	"github.com/berth-net/berth/internal/cri"
)

func TestMatching(t *testing.T) {
	list := []api.Attachment{
		{ID: "aaaaaaaaaa", ContainerID: "c1", Pod: &api.Pod{Namespace: "default", Name: "web"}, Addresses: []string{"10.88.0.1", "fd00::1"}, HostVeth: "bxxxxaaaaaaaaaa"},
		{ID: "bbbbbbbbbb", ContainerID: "c1", Ifname: "net1", Pod: &api.Pod{Namespace: "default", Name: "web"}, Addresses: []string{"10.88.0.10"}},
		{ID: "aaaacccccc", ContainerID: "4f1c9a7d", Pod: &api.Pod{Namespace: "other", Name: "web"}},
		{ID: "dddddddddd", ContainerID: "4f1c", Addresses: []string{"10.88.0.3"}},
	}
	for _, c := range []struct{ arg, want string }{
		{"aaaaaaaaaa", "aaaaaaaaaa"},
		{"c1", "aaaaaaaaaa bbbbbbbbbb"},
		{"default/web", "aaaaaaaaaa bbbbbbbbbb"},
		{"web", "aaaaaaaaaa bbbbbbbbbb aaaacccccc"},
		{"10.88.0.1", "aaaaaaaaaa"},
		{"fd00:0::1", "aaaaaaaaaa"},
		{"::ffff:10.88.0.1", "aaaaaaaaaa"},
		{"bxxxxaaaaaaaaaa", "aaaaaaaaaa"},
		{"aaaa", "aaaaaaaaaa aaaacccccc"},
		{"aaa", ""},
		{"4f1c", "dddddddddd"}, // a full name is preferred to the beginning of an id
		{"4f1c9", "aaaacccccc"},
		{"", ""},
		{"/", ""},
		{"defa", ""}, // a pod's name has to be given in full
	} {
		var ids []string
		for _, at := range matching(list, c.arg) {
			ids = append(ids, at.ID)
		}
		if got := strings.Join(ids, " "); got != c.want {
			t.Errorf("%q names %q, not %q", c.arg, got, c.want)
		}
	}
}

func TestFormat(t *testing.T) {
	big64 := new(big.Int).Lsh(big.NewInt(1), 64)
	for _, c := range []struct{ got, want string }{
		{span(-time.Second), "0s"},
		{span(119 * time.Second), "119s"},
		{span(2 * time.Minute), "2m"},
		{span(3 * time.Hour), "3h"},
		{span(49 * time.Hour), "2d"},
		{size(0), "0 B"},
		{size(1023), "1023 B"},
		{size(1536), "1.5 KiB"},
		{size(6 << 20), "6.0 MiB"},
		{size(2 << 40), "2048.0 GiB"},
		{figure(big.NewInt(0)), "0"},
		{figure(big.NewInt(65534)), "65534"},
		{figure(big64), "2^64"},
		{figure(new(big.Int).Sub(big64, big.NewInt(3))), "2^64"},
		{count(1, "pod"), "1 pod"},
		{count(0, "pod"), "0 pods"},
		{shortID("0123456789abcdef"), "0123456789abc"},
		{podName(nil), ""},
		{podName(&api.Pod{}), ""},
	} {
		if c.got != c.want {
			t.Errorf("%q is not %q", c.got, c.want)
		}
	}
}

// Colours do not move columns.
func TestTable(t *testing.T) {
	tbl := newTable("A", "LONGER", "C")
	tbl.row("wide cell", cell{"é", red}, "x")
	tbl.row("", "y", cell{})
	var out strings.Builder
	a := &app{stdout: &out}
	a.table(tbl)
	want := "A          LONGER  C\nwide cell  é       x\n-          y       -\n"
	if out.String() != want {
		t.Errorf("it prints\n%s", &out)
	}
	out.Reset()
	a.colour = true
	a.table(tbl)
	text := out.String()
	if !strings.Contains(text, "\x1b[31mé\x1b[0m       x\n") || !strings.HasPrefix(text, "\x1b[1mA\x1b[0m  ") {
		t.Errorf("it prints %q", text)
	}
	for _, code := range []string{"\x1b[0m", "\x1b[1m", "\x1b[31m"} {
		text = strings.ReplaceAll(text, code, "")
	}
	if text != want {
		t.Errorf("without its colours it is\n%s", text)
	}
}

// berth status counts no records that are not lost.
func TestHistoryTrouble(t *testing.T) {
	for h, want := range map[api.HistoryCount]string{
		{}:                        "",
		{Lost: 1}:                 "1 record lost",
		{Lost: 2, Error: "hangs"}: "2 records lost: hangs",
		{Error: "no space left"}:  "nothing is lost yet, and the agent tries again: no space left",
	} {
		if got := historyTrouble(h); got != want {
			t.Errorf("%+v: %q, want %q", h, got, want)
		}
	}
}

// For a node's own agent, install writes the example in deploy. For other agents, it writes
// the example with another name and root.
func TestConflist(t *testing.T) {
	own, err := (&app{root: "/"}).conflist("berth", confOptions{})
	if err != nil || !bytes.Equal(own, deploy.Conflist) {
		t.Errorf("%v\n%s", err, own)
	}
	other, err := (&app{root: "/tmp/a"}).conflist("net", confOptions{})
	must(t, err)
	var want, got map[string]any
	must(t, errors.Join(json.Unmarshal(deploy.Conflist, &want), json.Unmarshal(other, &got)))
	want["name"] = "net"
	want["plugins"].([]any)[0].(map[string]any)["root"] = "/tmp/a"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Without a runtime, and without both folders, nobody knows whether the files are in the right place.
func TestNoRuntime(t *testing.T) {
	nobody, containerd := targets{{Runtime: unnamed("")}}, targets{{Runtime: cri.Runtime{Name: "containerd"}}}
	for _, c := range []struct {
		places
		targets
		warns int
	}{
		{places{}, nobody, 1},
		{places{binDir: "/a"}, nobody, 1},
		{places{binDir: "/a", confDir: "/b"}, nobody, 0},
		{places{}, containerd, 0},
	} {
		if said := c.strangers(c.targets); len(said) != c.warns {
			t.Errorf("%+v of %+v: %q", c.places, c.targets, said)
		}
	}
	if who := nobody[0].who(); who != "a runtime such as containerd" {
		t.Errorf("%s", who)
	}
}

func TestRate(t *testing.T) {
	for _, c := range []struct {
		bits, burst uint64
		want        string
	}{
		{0, 0, "no limit"},
		{10_000_000, 4294967288, "10 Mbit/s, burst 4.3 Gbit"},
		{1_234_567, 12_000, "1234567 bit/s, burst 12 kbit"},
		{8, 999, "8 bit/s, burst 999 bit"},
	} {
		if got := rate(c.bits, c.burst); got != c.want {
			t.Errorf("%d and %d are %q", c.bits, c.burst, got)
		}
	}
}

// The text of a time means the whole span that it names, such as a minute or a day.
func TestParseTime(t *testing.T) {
	zone := time.FixedZone("there", 3600)
	now := time.Date(2026, 11, 23, 18, 46, 10, 5, zone)
	a := &app{now: func() time.Time { return now }}
	day := func(d, h, m, s, ns int) time.Time { return time.Date(2026, 11, d, h, m, s, ns, zone) }
	for text, want := range map[string]struct {
		from  time.Time
		lasts time.Duration
	}{
		"18:46":                          {day(23, 18, 46, 0, 0), time.Minute},
		"18:47":                          {day(22, 18, 47, 0, 0), time.Minute},
		"18:46:09":                       {day(23, 18, 46, 9, 0), time.Second},
		"18:46:09.120":                   {day(23, 18, 46, 9, 120e6), time.Millisecond},
		"18:46:11":                       {day(22, 18, 46, 11, 0), time.Second},
		"2026-11-03":                     {day(3, 0, 0, 0, 0), 24 * time.Hour},
		"2026-11-03 14:05":               {day(3, 14, 5, 0, 0), time.Minute},
		"2026-11-03 14:05:06":            {day(3, 14, 5, 6, 0), time.Second},
		"2026-11-03T14:05:06":            {day(3, 14, 5, 6, 0), time.Second},
		"2026-11-03T13:05:06Z":           {day(3, 14, 5, 6, 0), time.Second},
		"2026-11-03T13:05:06.5Z":         {day(3, 14, 5, 6, 5e8), 100 * time.Millisecond},
		"2026-11-03T13:05:06.123456789Z": {day(3, 14, 5, 6, 123456789), time.Nanosecond},
		"90m":                            {now.Add(-90 * time.Minute), 0},
	} {
		from, until, err := a.parseTime(text)
		if err != nil || !from.Equal(want.from) || want.lasts == 0 != until.IsZero() || want.lasts != 0 && until.Sub(from) != want.lasts {
			t.Errorf("%s is from %s until %s, %v; want %s for %s", text, from, until, err, want.from, want.lasts)
		}
	}
	// A day on which people set their clocks back has 25 hours.
	berlin, err := time.LoadLocation("Europe/Berlin")
	must(t, err)
	now = now.In(berlin)
	if from, until, err := a.parseTime("2026-10-25"); err != nil || until.Sub(from) != 25*time.Hour {
		t.Errorf("from %s until %s, %v", from, until, err)
	}
	for _, text := range []string{"", "noon", "-5m", "25:00", "14:05:06.", "2026-02-30"} {
		if from, _, err := a.parseTime(text); err == nil {
			t.Errorf("%q is %s", text, from)
		}
	}
}
