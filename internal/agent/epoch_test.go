package agent

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// Somebody has put another thing in the place of one of the agent's small files. A thing in the
// marker's place stops no start: the agent makes the marker anew, and pods stay. A thing in the
// place of the instance id stops the start: the agent refuses the thing at once, and names it.
func TestStartWithNoFilesInTheirPlaces(t *testing.T) {
	r := start(t)
	r.add(request("a", nettest.Pod(t)))
	marker, instance := r.root.Epoch(), r.root.Instance()
	fifo := func(path string) {
		t.Helper()
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		must(t, unix.Mkfifo(path, 0o600))
	}
	for name, make := range map[string]func(){
		"a FIFO":                   func() { fifo(marker) },
		"a folder":                 func() { must(t, errors.Join(os.Remove(marker), os.Mkdir(marker, 0o700))) },
		"a FIFO on the way to it":  func() { fifo(marker + ".new") },
		"a FIFO, and the instance": func() { must(t, os.Remove(instance)); fifo(instance + ".new") },
	} {
		make()
		r.restart()
		r.wantAttached("a")
		if epoch, id, err := daemon.ReadMarker(r.root); epoch != r.core.Epoch || id != r.core.Instance || err != nil {
			t.Errorf("with %s in its place the marker becomes %q, %q, %v", name, epoch, id, err)
		}
	}
	id := r.core.Instance
	r.close()
	fifo(marker)
	must(t, os.Remove(instance))
	if err := r.open(); !errors.Is(err, daemon.ErrInstanceLost) {
		t.Errorf("without the instance id, which a FIFO in the marker's place does not say, the agent starts: %v", err)
	}
	must(t, os.WriteFile(instance, []byte(id+"\n"), 0o600))
	must(t, r.open()) // which makes the marker anew
	fifo(instance)
	r.close()
	if err := r.open(); !errors.Is(err, root.ErrIrregular) {
		t.Errorf("with a FIFO in the place of its instance id the agent starts: %v", err)
	}
	must(t, os.Remove(instance))
	must(t, r.open()) // the marker has the instance id
	must(t, r.Restore(t.Context()))
}
