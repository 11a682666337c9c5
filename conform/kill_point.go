package conform

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

// changing are the system calls by which a program changes anything outside itself. Some
// architectures lack the system calls with "?".
const changing = "write,pwrite64,?sendto,sendmsg,connect,setns,unshare,mount,umount2,execve," +
	"?mkdir,mkdirat,?unlink,unlinkat,?rename,?renameat,?renameat2,?link,linkat,?symlink,symlinkat," +
	"ftruncate,fallocate,fsync,fdatasync,ioctl,flock"

// point is where a plugin of the list is killed in a verb.
type point struct {
	plugin int
	change int           // after how many of the changing system calls the plugin is killed; 0: see the field after
	after  time.Duration // how long after the start
	name   string
}

// points measures an undisturbed attachment to find the points at which each plugin of the
// list can be killed in a verb, and chooses some of them, evenly spread.
func (t *T) points(verb string) []point {
	t.Warm() // the calls for the node's first pod may differ
	var all []point
	a := t.NewAttachment()
	for i := range t.list().Plugins {
		got := t.measured(verb, "ADD", i, a, &all)
		if !got.OK() {
			t.Fatalf("an ordinary ADD fails: %s", got)
		}
		a.Result = got.Stdout
	}
	for i := len(t.list().Plugins) - 1; i >= 0; i-- {
		if got := t.measured(verb, "DEL", i, a, &all); !got.OK() {
			t.Fatalf("an ordinary DEL fails: %s", got)
		}
	}
	t.must(a.Pod.Remove())
	if len(all) == 0 {
		t.Unsupportedf("the suite saw no system call of %s that changes anything", verb)
	}
	return spread(all, t.suite.Points)
}

// measured makes a call and, if its verb is `want`, adds to all the points at which the plugin can
// be killed.
func (t *T) measured(want, verb string, plugin int, a *Attachment, all *[]point) Answer {
	c := t.Call(verb, plugin, a, a.Result)
	if verb != want {
		return t.Exec(c)
	}
	if strace, err := exec.LookPath("strace"); err == nil {
		got, changes := t.counted(strace, c)
		for k := 1; k <= changes; k++ {
			name := fmt.Sprintf("%s %s killed after change %d of %d", c.Type, verb, k, changes)
			*all = append(*all, point{plugin: plugin, change: k, name: name})
		}
		return got
	}
	got := t.Exec(c)
	for k := range t.suite.Points {
		after := got.Took * time.Duration(k+1) / time.Duration(t.suite.Points+1)
		name := fmt.Sprintf("%s %s killed after %s of %s", c.Type, verb, after.Round(time.Microsecond), got.Took.Round(time.Microsecond))
		*all = append(*all, point{plugin: plugin, after: after, name: name})
	}
	return got
}

// spread chooses at most n points, evenly spread.
func spread(all []point, n int) []point {
	if len(all) <= n {
		return all
	}
	var some []point
	for i := range n {
		some = append(some, all[i*(len(all)-1)/max(n-1, 1)])
	}
	return some
}

// tracedCall matches a line of strace -f with the begin of a call: a thread and the call.
var tracedCall = regexp.MustCompile(`(?m)^\d+ +[a-z0-9_]+\(`)

// counted runs a call and counts its changing system calls, in all its threads and in all processes
// that it starts.
func (t *T) counted(strace string, c Call) (Answer, int) {
	out, err := os.CreateTemp(t.scratch(), "strace-*")
	t.must(err)
	defer os.Remove(out.Name())
	defer out.Close()
	c.Wrapper = []string{strace, "-f", "--seccomp-bpf", "-o", out.Name(), "-e", "trace=" + changing, "-e", "signal=none"}
	got := t.Exec(c)
	trace, err := os.ReadFile(out.Name())
	t.must(err)
	return got, len(tracedCall.FindAll(trace, -1))
}

// killed runs a call, and kills the plugin and all processes that it started at a point. strace's
// own signal injection counts system calls by thread, and in a Go program each run distributes
// the system calls to threads differently. So strace only delays the end of each system call by a
// millisecond here, and killed counts the system calls that strace prints.
func (t *T) killed(c Call, p point) Answer {
	if p.change == 0 {
		c.Began = func(kill func()) { time.AfterFunc(p.after, kill) }
		return t.Exec(c)
	}
	path := filepath.Join(t.scratch(), "trace")
	t.must(unix.Mkfifo(path, 0o600))
	defer os.Remove(path)
	fifo, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0) // also for writing, so that reading does not come to an end
	t.must(err)
	defer fifo.Close()
	c.Wrapper = []string{
		"strace", "-f", "--seccomp-bpf", "-o", path, "-e", "trace=" + changing, "-e", "signal=none",
		"-e", "inject=" + changing + ":delay_exit=1000",
	}
	c.Began = func(kill func()) {
		go func() {
			seen := 0
			for lines := bufio.NewScanner(fifo); lines.Scan(); {
				if tracedCall.Match(lines.Bytes()) {
					if seen++; seen == p.change {
						kill()
					}
				}
			}
		}()
	}
	return t.Exec(c)
}
