package conform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Call is one execution of a plugin (CNI 1.1, section 2).
type Call struct {
	Type    string            // the plugin's type, which is its program's name
	plugin  int               // the plugin's place in the list
	Verb    string            // CNI_COMMAND
	Env     map[string]string // the other CNI_ variables; empty ones are not set
	Stdin   []byte
	Wrapper []string // the program that runs the plugin, such as strace; nil: none

	Bare  bool              // CNI_PATH is not set
	Path  string            // the folder in which delegated plugins are looked for first; "": none
	Began func(kill func()) // is called when the plugin has started; kill kills the plugin and all its processes; may be nil
}

// Answer is how a plugin answered a call.
type Answer struct {
	Call   Call
	Stdout []byte
	Stderr []byte
	Exit   int // -1: the plugin was killed
	Hung   bool
	Took   time.Duration
}

// Error is an error as a plugin prints it (CNI 1.1, section 5: "Error").
type Error struct {
	Version string `json:"cniVersion"`
	Code    uint   `json:"code"`
	Msg     string `json:"msg"`
	Details string `json:"details,omitempty"`
}

// OK reports that a plugin succeeded.
func (a Answer) OK() bool { return a.Exit == 0 && !a.Hung && !a.garbled() }

// garbled reports that an ADD succeeded, but that its output is not JSON, so that no runtime can
// read it.
func (a Answer) garbled() bool { return a.Call.Verb == "ADD" && a.Exit == 0 && !json.Valid(a.Stdout) }

// Failure reads the error of a plugin that failed.
func (a Answer) Failure() (*Error, error) {
	var e Error
	switch err := json.Unmarshal(a.Stdout, &e); {
	case err != nil:
		return nil, fmt.Errorf("its output is not JSON: %w", err)
	case e.Code == 0 || e.Msg == "":
		return nil, errors.New(`its output lacks "code" or "msg"`)
	}
	return &e, nil
}

// later reports whether a plugin failed for a time only: the runtime should try again later (CNI 1.1, section 5, "Error": code 11).
func (a Answer) later() bool {
	e, err := a.Failure()
	return a.Exit > 0 && err == nil && e.Code == 11
}

// unsupported reports whether a plugin failed because the kernel lacks something (EOPNOTSUPP), such as a sort of link.
func (a Answer) unsupported() bool {
	return a.Exit > 0 && strings.Contains(strings.ToLower(string(a.Stdout)), syscall.EOPNOTSUPP.Error())
}

// readOnly reports whether a plugin failed because it could not write a file (EROFS). It may have told only a log.
func (a Answer) readOnly() bool {
	return a.Exit > 0 && strings.Contains(strings.ToLower(string(a.Stdout)+string(a.Stderr)), syscall.EROFS.Error())
}

// String says in a line what a plugin answered.
func (a Answer) String() string {
	what := fmt.Sprintf("%s %s: ", a.Call.Type, a.Call.Verb)
	switch {
	case a.Hung:
		return what + fmt.Sprintf("did not end within %s", a.Took.Round(time.Second))
	case a.garbled():
		return what + "success, but its output is not JSON: " + short(a.Stdout)
	case a.Exit == 0:
		return strings.TrimSuffix(what+"success "+short(a.Stdout), " ")
	case a.Exit < 0:
		return what + "killed"
	}
	if e, err := a.Failure(); err == nil {
		what += strings.TrimSuffix(fmt.Sprintf("error %d, %s: %s", e.Code, e.Msg, short([]byte(e.Details))), ": ")
		if stderr := short(a.Stderr); stderr != "" {
			what += fmt.Sprintf("; stderr %q", stderr)
		}
		return what
	}
	return what + fmt.Sprintf("exit %d, stdout %q, stderr %q", a.Exit, short(a.Stdout), short(a.Stderr))
}

// short cuts a plugin's output to a length that a person reads.
func short(raw []byte) string {
	text := strings.Join(strings.Fields(string(raw)), " ")
	if len(text) > 300 {
		text = text[:300] + "..."
	}
	return text
}

// queue limits the time of calls that run at the same time. Plugins may work through the calls one by
// one. So calls count as hanging only if no call has ended for as long as one call may take.
type queue struct {
	ctx   context.Context // ends when the remaining calls hang
	limit time.Duration
	timer *time.Timer
	close func()
}

func newQueue(ctx context.Context, limit time.Duration) *queue {
	ctx, cancel := context.WithCancel(ctx)
	return &queue{ctx: ctx, limit: limit, timer: time.AfterFunc(limit, cancel), close: cancel}
}

// ended is called at the end of each call.
func (q *queue) ended() {
	if q.ctx.Err() == nil {
		q.timer.Reset(q.limit)
	}
}

// patience returns a context that ends when a call hangs, and a function that the caller calls
// when the call has ended.
func (n *Node) patience(ctx context.Context) (context.Context, func()) {
	if n.queue != nil {
		return n.queue.ctx, n.queue.ended
	}
	return context.WithTimeout(ctx, n.suite.Timeout)
}

// Exec runs a plugin on the node. It kills a plugin that hangs, and all that the plugin
// started.
func (n *Node) Exec(ctx context.Context, c Call) (Answer, error) {
	ctx, ended := n.patience(ctx)
	defer ended()
	argv := append(append([]string{}, c.Wrapper...), filepath.Join(n.suite.BinDir, c.Type))
	a := Answer{Call: c}
	err := n.Do(func() error {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + c.Verb, "CNI_PATH=" + strings.TrimPrefix(c.Path+":"+n.suite.BinDir, ":")}
		if c.Bare {
			cmd.Env = cmd.Env[:2]
		}
		for k, v := range c.Env {
			if v != "" {
				cmd.Env = append(cmd.Env, k+"="+v)
			}
		}
		cmd.Dir = "/"
		cmd.Stdin = bytes.NewReader(c.Stdin)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = time.Second // a daemon that the plugin started may hold the input open, and not read it
		began := time.Now()
		printed, err := startCatching(cmd)
		if err == nil {
			if c.Began != nil {
				var over atomic.Bool
				defer over.Store(true)
				group := -cmd.Process.Pid
				c.Began(func() {
					if !over.Load() {
						_ = syscall.Kill(group, syscall.SIGKILL) // ESRCH: the plugin has ended
					}
				})
			}
			err = cmd.Wait()
			var lost error
			if a.Stdout, a.Stderr, lost = printed.finish(); lost != nil {
				return fmt.Errorf("reading what %s prints: %w", argv[0], lost)
			}
		}
		a.Took, a.Hung = time.Since(began), ctx.Err() != nil
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit):
			a.Exit = exit.ExitCode()
		case a.Hung:
			a.Exit = -1
		case err != nil && !errors.Is(err, exec.ErrWaitDelay):
			return fmt.Errorf("executing %s: %w", argv[0], err)
		}
		return nil
	})
	return a, err
}
