package daemon

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// logReader is a log whose reader reads nothing until free is closed.
type logReader struct {
	free chan struct{}
	err  error

	mu  sync.Mutex
	got strings.Builder
}

func (r *logReader) Write(p []byte) (int, error) {
	<-r.free
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return 0, r.err
	}
	return r.got.Write(p)
}

func (r *logReader) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func (r *logReader) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Split(strings.TrimSuffix(r.got.String(), "\n"), "\n")
}

// If nobody reads the log, whoever logs does not wait. When somebody reads it again, it has
// a line that says how many lines are missing, and then the newest lines, in order.
func TestLogIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &logReader{free: make(chan struct{})}
		w := newLogWriter(r, 10*len("line 00\n"))
		for i := range 30 {
			fmt.Fprintf(w, "line %02d\n", i)
			if i == 0 {
				synctest.Wait() // the goroutine that writes has the line, and hangs
			}
		}
		began := time.Now()
		go func() {
			time.Sleep(time.Second)
			close(r.free)
		}()
		w.Close(time.Minute)
		if took := time.Since(began); took != time.Second {
			t.Errorf("Close waits %s", took)
		}
		got := r.lines()
		if len(got) != 12 || got[0] != "line 00" || !strings.HasSuffix(got[1], "lines=19") || got[2] != "line 20" || got[11] != "line 29" {
			t.Errorf("the log says %q", got)
		}
	})
}

// If nobody ever reads the log again, Close waits no longer than its patience.
func TestCloseOfLogIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &logReader{free: make(chan struct{})}
		w := NewLogWriter(r)
		fmt.Fprintln(w, "a line")
		began := time.Now()
		w.Close(time.Second)
		if took := time.Since(began); took != time.Second {
			t.Errorf("Close waits %s", took)
		}
		close(r.free)
	})
}

// When the log can be written again, it says how many lines could not be written, for
// example because the disk was full.
func TestLogFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &logReader{free: make(chan struct{}), err: errors.New("no space left")}
		close(r.free)
		w := NewLogWriter(r)
		for range 3 {
			fmt.Fprintln(w, "lost")
			synctest.Wait()
		}
		r.fail(nil)
		fmt.Fprintln(w, "heard")
		w.Close(time.Minute)
		if got := r.lines(); len(got) != 2 || !strings.HasSuffix(got[0], "lines=3") || got[1] != "heard" {
			t.Errorf("the log says %q", got)
		}
	})
}

// A pipe has room for a part of the lines at a time. No line is lost or mixed with another.
func TestLogIsPipe(t *testing.T) {
	r, to, err := os.Pipe()
	must(t, err)
	defer r.Close()
	w := NewLogWriter(to)
	for i := range 1000 {
		fmt.Fprintln(w, i, strings.Repeat("x", 1000))
	}
	fmt.Fprintln(w, "last")
	text := make(chan string)
	go func() {
		var all strings.Builder
		buf := make([]byte, 4096)
		for !strings.HasSuffix(all.String(), "last\n") {
			n, err := r.Read(buf)
			all.Write(buf[:n])
			if err != nil {
				break
			}
		}
		text <- all.String()
	}()
	for i, line := range strings.Split(strings.TrimSpace(<-text), "\n") {
		if i < 1000 && !strings.HasPrefix(line, fmt.Sprint(i, " x")) {
			t.Fatalf("line %d is %.20q", i, line)
		}
	}
	w.Close(time.Minute)
}
