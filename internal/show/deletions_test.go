package show

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/deletions"
)

// A runtime repeats a DEL while the agent is away, and the plugin queues each DEL. People see
// one row for the attachment, which counts as cut off if any of the DELs has cut it off.
func TestByAttachment(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	got := ByAttachment([]api.QueuedDeletion{
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

// The status counts the deletions for which `berth owed` has rows.
func TestDeletionCount(t *testing.T) {
	var s deletions.Survey
	for i, r := range []deletions.Record{
		{Network: "net", Container: "a", Ifname: "eth0"},
		{Network: "net", Container: "a", Ifname: "eth0", Cut: true},
		{Network: "net", Container: "a", Ifname: "eth1"},
		{Network: "other", Container: "a", Ifname: "eth1", Cut: true},
	} {
		s.Pending = append(s.Pending, deletions.Entry{Name: fmt.Sprint(i), Record: r})
	}
	s.Damaged, s.Spares = []deletions.Damaged{{Name: "junk", Err: errors.New("no JSON")}}, 7
	want := api.DeletionCount{Queued: 4, Attachments: 3, Uncut: 1, Damaged: 1, Spares: 7, Error: "a disk"}
	if diff := cmp.Diff(want, DeletionCount(s, errors.New("a disk"))); diff != "" {
		t.Error(diff)
	}
}
