package demo

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// The demo leaves nothing when it is told to end, and when it is killed.
func TestEnd(t *testing.T) {
	for _, c := range []struct {
		signal unix.Signal
		step   string // at which the signal is sent
		code   int    // -1: by the signal
		says   string
	}{
		{unix.SIGINT, "agent", 1, "berth: the demo is interrupted"},
		{unix.SIGTERM, "kill", 1, "berth: the demo is interrupted"},
		{unix.SIGKILL, "attach", -1, ""},
	} {
		t.Run(c.signal.String(), func(t *testing.T) {
			var stderr bytes.Buffer
			cmd := demo(programs.Own(t))
			cmd.Stderr = &stderr
			r, w, err := os.Pipe()
			nettest.Must(t, err)
			defer r.Close()
			cmd.Stdout = w
			nettest.Must(t, cmd.Start())
			w.Close()
			var out []byte
			for buf := make([]byte, 1<<10); !bytes.Contains(out, []byte(" s  "+c.step)); {
				n, err := r.Read(buf)
				if out = append(out, buf[:n]...); err != nil {
					cmd.Wait()
					need(t, stderr.Bytes())
					t.Fatalf("it ended before step %q: %s%s", c.step, out, &stderr)
				}
			}
			nettest.Must(t, cmd.Process.Signal(c.signal))
			cmd.Wait()
			rest, err := io.ReadAll(r)
			if err != nil || bytes.Contains(rest, []byte("residue:")) {
				t.Errorf("it goes on: %v\n%s", err, rest)
			}
			if code := cmd.ProcessState.ExitCode(); code != c.code {
				t.Errorf("exit code %d\n%s", code, &stderr)
			}
			if !strings.Contains(stderr.String(), c.says) {
				t.Errorf("it says %q", &stderr)
			}
			nettest.Eventually(t, "all of its processes to end", func() bool { return len(processes(t)) == 0 })
		})
	}
}
