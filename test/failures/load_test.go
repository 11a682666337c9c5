package failures

import (
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// cilium #45383: pods that asked a pool at the same time got the same address, or none though
// some were free. Here a pool of 30 addresses serves 30 pods at once, each with an address of
// its own, and all pods go at once.
func TestPoolIsAskedByManyAtOnce(t *testing.T) {
	n := newNode(t, "cooldown: 1h\npools:\n- {name: default, cidrs: [10.88.0.0/27]}\n")
	by := map[string]string{}
	for _, got := range n.burst(30) {
		if other := by[got.String()]; other != "" {
			t.Errorf("%s is given to %s and %s", got, other, got.host)
		}
		by[got.String()] = got.host
	}
	_, err := n.tryAdd("more", nettest.Pod(t))
	programs.WantError(t, err, 100, "30 in use")
	n.collect()
	n.wantNothing()
	if p := n.pool(); p.Used != 0 || p.Resting != 30 {
		t.Errorf("the pool's figures: %+v, want 30 resting", p)
	}
}

// CVE-2022-31030: an endless answer took all memory. Here neither the plugin's
// stdin nor a request to the agent may be endless: both are refused early.
func TestEndlessInput(t *testing.T) {
	n := newNode(t, plain)
	cmd := exec.Command(filepath.Join(n.bin, "berth-cni"))
	cmd.Env = []string{"CNI_COMMAND=DEL", "CNI_CONTAINERID=c", "CNI_IFNAME=eth0", "CNI_PATH=" + n.bin}
	cmd.Stdin = endless()
	out, err := cmd.Output()
	if err == nil || !strings.Contains(string(out), "too large") {
		t.Errorf("the plugin with an endless stdin: %v\n%s", err, out)
	}
	if peak := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10; peak > small {
		t.Errorf("the plugin had %d MiB", peak>>20)
	}
	conn, err := client.Dial(t.Context(), root.Dir(n.Root).Socket())
	must(t, err)
	defer conn.Close()
	req, err := http.NewRequest("POST", "http://berthd"+api.PathAttachments, endless())
	must(t, err)
	if err := req.Write(conn); err == nil {
		t.Error("the agent reads an endless request to its end")
	}
	if size, err := n.Resident(); err != nil || size > small {
		t.Errorf("the agent has %d MiB, %v", size>>20, err)
	}
}

// small is more memory than plugin or agent need for a request that is refused,
// in bytes.
const small = 128 << 20

// endless is blanks, which JSON allows: so many that the test sees a program that keeps them
// all, but few enough for the machine.
func endless() io.Reader { return io.LimitReader(blanks{}, 4*small) }

type blanks struct{}

func (blanks) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}
