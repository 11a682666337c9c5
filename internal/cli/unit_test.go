package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/deploy"
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

// For a node's own agent, install writes the example in deploy. For other agents, it writes
// the example with another name and root.
func TestConflist(t *testing.T) {
	own, err := (&app{root: "/"}).conflist("berth")
	if err != nil || !bytes.Equal(own, deploy.Conflist) {
		t.Errorf("%v\n%s", err, own)
	}
	other, err := (&app{root: "/tmp/a"}).conflist("net")
	if err != nil {
		t.Fatal(err)
	}
	var want, got map[string]any
	if err := errors.Join(json.Unmarshal(deploy.Conflist, &want), json.Unmarshal(other, &got)); err != nil {
		t.Fatal(err)
	}
	want["name"] = "net"
	want["plugins"].([]any)[0].(map[string]any)["root"] = "/tmp/a"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A runtime repeats a DEL while the agent is away, and each is queued: people see one row for
// the pod, which is cut off if any of the DELs has cut it off.
func TestQueuedByPod(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	got := byPod([]api.QueuedDeletion{
		{ContainerID: "b", Ifname: "eth0", Written: at(5), Reason: "5"},
		{ContainerID: "a", Ifname: "eth0", Written: at(3), Reason: "3"},
		{ContainerID: "a", Ifname: "eth0", Written: at(1), Reason: "1"},
		{ContainerID: "a", Ifname: "eth0", Written: at(2), Reason: "2", Cut: true},
		{ContainerID: "a", Ifname: "eth1", Written: at(4), Reason: "4"},
	})
	want := []api.QueuedDeletion{
		{ContainerID: "a", Ifname: "eth0", Written: at(1), Reason: "3", Cut: true},
		{ContainerID: "a", Ifname: "eth1", Written: at(4), Reason: "4"},
		{ContainerID: "b", Ifname: "eth0", Written: at(5), Reason: "5"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
