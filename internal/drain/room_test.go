package drain

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// rig is the agent's end of a queue, on a disk of its own.
type rig struct {
	*Drain
	t    *testing.T
	pods int
}

func newRig(t *testing.T) *rig {
	nettest.Need(t) // for the mount
	dir := t.TempDir()
	nettest.Mount(t, dir, "size=8m")
	d := &Drain{Core: &daemon.Core{}, index: attachment.NewIndex()}
	d.Root, d.Log = root.Dir(dir), slog.New(slog.DiscardHandler)
	nettest.Must(t, d.open(func(func(func()) error, func()) error { return nil }))
	t.Cleanup(func() { nettest.Must(t, d.Close()) })
	return &rig{Drain: d, t: t}
}

// attach attaches pods until there are so many.
func (r *rig) attach(pods int) {
	r.t.Helper()
	for ; r.pods < pods; r.pods++ {
		id := strconv.Itoa(r.pods)
		rec := attachment.Record{Key: attachment.Key{Network: "net", ContainerID: id, Ifname: "eth0"}}
		nettest.Must(r.t, r.index.Apply(ledger.Edit{After: &hold.Owner{ID: hold.ID(id), Meta: rec.Encode()}}))
	}
}

func (r *rig) wantSpares(want int) {
	r.t.Helper()
	s, err := deletions.Look(r.Root)
	nettest.Must(r.t, err)
	if s.Spares != want {
		r.t.Errorf("%d spare files for %d pods, want %d", s.Spares, r.pods, want)
	}
}

// wantAsked wants that the last Spared has had more files made, or has not.
func (r *rig) wantAsked(want bool) {
	r.t.Helper()
	select {
	case <-r.room.few:
		if !want {
			r.t.Errorf("%d pods: KeepRoom is to make more files", r.pods)
		}
	default:
		if want {
			r.t.Errorf("%d pods: KeepRoom is not to make more files", r.pods)
		}
	}
}

// The spare files are as many as the pods, and a margin, which ADDs use up before more are made.
func TestSparesForAllPods(t *testing.T) {
	r := newRig(t)
	r.KeepSpares()
	r.wantSpares(deletions.Spares)
	for _, step := range []struct {
		pods   int
		asked  bool
		spares int // after the next refill
	}{
		{200, false, 256}, {224, false, 256}, {225, true, 289}, {257, false, 289}, {258, true, 322},
		{600, true, 750}, {660, false, 750},
	} {
		r.attach(step.pods)
		nettest.Must(t, r.Spared())
		r.wantAsked(step.asked)
		if r.Filling() != step.asked {
			t.Errorf("%d pods: filling is %v", step.pods, r.Filling())
		}
		r.KeepSpares()
		r.wantSpares(step.spares)
	}
}

// An ADD asks for more spare files, and KeepRoom makes them.
func TestKeepRoom(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { r.KeepRoom(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	nettest.Eventually(t, "the first spare files", func() bool { return !r.Filling() })
	r.attach(300)
	nettest.Must(t, r.Spared())
	nettest.Eventually(t, "more spare files", func() bool { return !r.Filling() })
	r.wantSpares(375)
}

// If the disk has no room for more spare files, pods are attached as long as there is a spare file
// for each of them, those of ADDs under way included. ADDs do not try to make more files.
func TestNoRoomForMorePods(t *testing.T) {
	r := newRig(t)
	r.KeepSpares()
	r.attach(250)
	nettest.Fill(t, string(r.Root))
	nettest.Must(t, r.Spared()) // nobody has found out yet that the disk is full
	r.wantAsked(true)
	r.KeepSpares()
	nettest.Must(t, r.Spared())
	r.wantAsked(false)
	var done []func()
	for range 6 {
		done = append(done, r.Adding())
		nettest.Must(t, r.Spared())
	}
	done = append(done, r.Adding())
	r.wantRefused("256 spare files, but 257 are needed")
	for _, d := range done {
		d()
	}
	r.attach(255)
	nettest.Must(t, r.Spared())
	r.attach(256)
	r.wantRefused("256 spare files, but 257 are needed")
	for i := range r.pods { // no agent is there, and each of them is deleted
		rec := deletions.Record{Network: "net", Container: strconv.Itoa(i), Ifname: "eth0", Boot: "b", Started: 1}
		if err := deletions.Write(r.Root, rec); err != nil {
			t.Fatalf("the deletion of pod %d: %v", i, err)
		}
	}
	nettest.Must(t, os.Remove(filepath.Join(string(r.Root), "filler")))
	r.KeepSpares()
	r.wantSpares(250 + 64) // what the refill of 250 pods was to reach is enough for 256
	nettest.Must(t, r.Spared())
}

func (r *rig) wantRefused(want string) {
	r.t.Helper()
	if err := r.Spared(); err == nil || !strings.Contains(err.Error(), want) {
		r.t.Errorf("%d pods: %v, want an error with %q", r.pods, err, want)
	}
}
