package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// An ADD that is refused leaves the attachment that it would have replaced.
func TestRefusedAddReleasesNothing(t *testing.T) {
	r := start(t)
	a, b, free := nettest.Pod(t), nettest.Pod(t), nettest.Pod(t)
	r.add(request("a", a))
	r.add(request("b", b))
	before := r.List(key("a"))[0].ID
	_, err := r.tryAdd(request("a", free, `"pool":"none"`))
	wantError(t, err, 7, "none")
	_, err = r.tryAdd(request("a", free, `"mtu":1000`))
	wantError(t, err, 7, "1280")
	_, err = r.tryAdd(request("a", b))
	wantError(t, err, 101, "belongs to")
	if left := r.List(key("a")); len(left) != 1 || left[0].ID != before || left[0].Releasing != nil {
		t.Errorf("after refused ADDs: %+v", left)
	}
}

// An ADD for another network namespace is refused: the attachment that it would have replaced
// stands and can be reached, and the addresses that the ADD had claimed are free.
func TestRefusedMoveReleasesNothing(t *testing.T) {
	const ips, spare = `"runtimeConfig":{"ips":["%s"]}`, `"pool":"spare"`
	for _, c := range []struct {
		name, asks string
		code       uint
		says       string
	}{
		{"address in use", fmt.Sprintf(ips, "10.88.0.2"), 101, "in use"},
		{"its own address", fmt.Sprintf(ips, "10.88.0.1"), 101, "DEL it first"},
		{"address that rests", fmt.Sprintf(ips, "10.88.0.3"), 101, "in cooldown"},
		{"address of no pool", fmt.Sprintf(ips, "10.99.0.1"), 101, "not in the pool"},
		{"full pool", `"pool":"full"`, 100, "no free IPv4 address"},
		{"full disk", spare, 5, "disk full"},
		{"later DEL", spare, 11, "overtook"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, "default=10.88.0.0/29", "full=10.87.0.1/32", "spare=10.86.0.1/32")
			dir := smallDisk(t)
			r.root, r.cooldown = root.Dir(dir), time.Minute
			r.begin()
			a, b, free := nettest.Pod(t), nettest.Pod(t), nettest.Pod(t)
			was := addresses(r.add(request("a", a)))[0]
			r.add(request("b", b))
			r.add(request("rests", free))
			r.del("rests", true)
			r.add(request("full", nettest.Pod(t), `"pool":"full"`))
			before, when := r.List(key("a"))[0].ID, now()
			switch c.name {
			case "full disk":
				defer r.fillDisk(dir)()
			case "later DEL": // the DEL spared the attachment: it began before the first ADD, or nobody can tell
				grave := ledger.Tombstone{Key: "net/a/eth0", Boot: r.core.Boot, Started: when.Started, Until: when.Deadline}
				must(t, r.core.Ledger.Commit(t.Context(), ledger.Bury(grave)))
			}
			_, err := r.Add(t.Context(), request("a", free, c.asks), when)
			wantError(t, err, c.code, c.says)
			if left := r.List(key("a")); len(left) != 1 || left[0].ID != before || left[0].Releasing != nil {
				t.Fatalf("after the refused ADD: %+v", left)
			}
			nettest.Ping(t, b, was)
			if free := r.ground.Pools.Available("spare", r.core.Clock.Now()); free != nil {
				t.Errorf("after the refused ADD: %v", free)
			}
		})
	}
}

// On a full disk, the agent refuses repeated ADDs and DELs of pods that the ledger does not have, once
// these have used up their room. Then the plugin queues the DELs. The agent can still delete each
// attached pod.
func TestFullDiskDeletes(t *testing.T) {
	r := newRig(t, "default=10.88.0.0/24")
	dir := smallDisk(t)
	r.root, r.cooldown = root.Dir(dir), time.Minute
	r.begin()
	pods := make([]*ns.Netns, 8)
	for i := range pods {
		pods[i] = nettest.Pod(t)
		r.add(request(fmt.Sprint(i), pods[i]))
	}
	defer r.fillDisk(dir)()
	refused := func(what string, try func(i int) error) {
		t.Helper()
		for i := range 5000 {
			if err := try(i); err != nil {
				wantError(t, err, 5, "disk full")
				t.Logf("%d %s, then %v", i, what, err)
				return
			}
		}
		t.Errorf("%s are never refused", what)
	}
	refused("repeated ADDs", func(i int) error {
		_, err := r.tryAdd(request(fmt.Sprint(i%len(pods)), pods[i%len(pods)]))
		return err
	})
	refused("DELs of nobody", func(i int) error {
		_, _, err := r.Delete(t.Context(), key(fmt.Sprintf("nobody-%d", i)), false, now())
		return err
	})
	for i := range pods {
		if !r.del(fmt.Sprint(i), true) {
			t.Errorf("pod %d is unknown", i)
		}
	}
	if left := r.List(api.Filter{}); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
	r.wantClean()
}

// fillDisk fills the file system of the rig's root, and its ledger, until no owner can be
// begun. The function that it returns makes room again.
func (r *rig) fillDisk(dir string) func() {
	r.t.Helper()
	nettest.Fill(r.t, dir)
	var err error
	var ids []hold.ID
	for _, size := range []int{1 << 16, 1 << 10, 1} { // the room that is too small for a large owner may be left for a small one
		meta := json.RawMessage(`{"sort":"` + strings.Repeat("x", size) + `"}`)
		for err = nil; err == nil && len(ids) < 5000; {
			id := hold.NewID()
			err = r.core.Ledger.Commit(r.t.Context(), ledger.Begin(hold.Owner{ID: id, Meta: meta}))
			ids = append(ids, id)
		}
		if !errors.Is(err, ledger.ErrFull) {
			r.t.Fatalf("the disk is not full: %v", err)
		}
	}
	return func() {
		must(r.t, os.Remove(filepath.Join(dir, "filler")))
		for _, id := range ids {
			must(r.t, r.core.Ledger.Commit(context.Background(), ledger.Forget(id, r.core.Clock.Now())))
		}
	}
}

// smallDisk mounts a file system of 8 MiB, until the test ends.
func smallDisk(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	nettest.Mount(t, dir, "size=8m")
	return dir
}
