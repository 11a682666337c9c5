package conform

import (
	"os"
	"testing"
	"time"
)

// What a command has printed before it ended is read, even if nobody had time to read it before: a busy machine is not the plugin's fault. That a
// daemon still has the pipe changes nothing.
func TestLateOutput(t *testing.T) {
	t.Parallel()
	r, daemons, err := os.Pipe()
	must(t, err)
	defer daemons.Close()
	nobody := make(chan struct{})
	close(nobody)
	_, err = daemons.WriteString("result")
	must(t, err)
	o := &output{pipe: r, end: daemons, read: nobody}
	if got, err := o.finish(time.Now()); err != nil || string(got) != "result" {
		t.Errorf("printed %q, %v", got, err)
	}
}
