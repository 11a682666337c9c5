package agent

import (
	"os"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/nettest"
)

// removeWithoutPool is berthd --remove, whose configuration has no pool.
func (r *rig) removeWithoutPool() {
	r.t.Helper()
	o, err := r.options()
	must(r.t, err)
	o.Config, err = config.Load(r.root, config.Flags{Remove: true})
	must(r.t, err)
	must(r.t, Remove(r.t.Context(), o))
}

// berthd --remove needs no pool, and does the queued deletions. The addresses that it frees
// rest all the same: somebody may start the next agent right after it.
func TestRemoveLetsAddressesRest(t *testing.T) {
	r := newRig(t)
	r.cooldown = time.Minute
	r.begin()
	addr := addresses(r.add(request("c", nettest.Pod(t))))[0]
	r.close()
	r.enqueue(r.deletion("c", ""))
	r.removeWithoutPool()
	r.bringUp()
	for _, rest := range r.core.Ledger.Resting() {
		if rest.Name == ipam.Name(addr) {
			return
		}
	}
	t.Errorf("%s does not rest: %v", addr, r.core.Ledger.Resting())
}

// The same after the ledger was lost: nobody knows which addresses rest.
func TestRemoveWithoutALedgerLetsAllRest(t *testing.T) {
	r := newRig(t)
	r.begin()
	r.close()
	must(t, os.Remove(r.root.Ledger()))
	r.removeWithoutPool()
	r.bringUp()
	if !r.core.Ledger.Quarantine().Until.After(r.core.Clock.Now()) {
		t.Errorf("quarantine %+v", r.core.Ledger.Quarantine())
	}
}

// berthd --remove leaves no private key of WireGuard, and no half of one.
func TestRemoveTakesTheKey(t *testing.T) {
	r := newRig(t)
	r.begin()
	_, err := r.cluster.Peers.Secret()
	must(t, err)
	r.close()
	half := r.root.WireGuardKey() + ".new-1"
	must(t, os.WriteFile(half, []byte("half a key"), 0o600))
	r.removeWithoutPool()
	for _, path := range []string{r.root.WireGuardKey(), half} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	r.bringUp()
}
