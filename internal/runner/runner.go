package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/daemon/socket"
	"github.com/berth-net/berth/internal/root"
)

// DefaultFolder is where plugins are by default.
const DefaultFolder = "/opt/cni/bin"

// HostMount is the mount namespace of the node, as a process sees it that shares the node's process ids.
const HostMount = "/proc/1/ns/mnt"

// defaultOutput is how many bytes of a plugin's stdout the runner keeps by default.
const defaultOutput = 1 << 20

// Options are a runner's parts.
type Options struct {
	Root root.Dir
	Log  *slog.Logger
	// Folders are the only ones in which plugins may be; none: DefaultFolder.
	Folders []string
	// Mount is the path of the mount namespace in which plugins run; "": the runner's own.
	Mount string
	// Processes is how many plugins run at once, 2 or more; 0: two for each processor. Half as many more are for deletions that come while
	// others have all.
	Processes int
	// Output is how many bytes of a plugin's stdout the runner keeps; 0: 1 MiB.
	Output int

	patiences *patiences // of tests; nil: usual
}

// Runner runs plugins.
type Runner struct {
	folders []string
	output  int
	log     *slog.Logger
	env     []string // the runner's own part of each plugin's environment

	queue   *queue
	search  *search
	thread  *thread // starts the plugins
	records *records
	requests
	patiences

	ctx  context.Context // of all executions
	stop context.CancelFunc
	root root.Dir
	http *http.Server
	ends sync.WaitGroup // goroutines that end with ctx

	mu       sync.Mutex
	socket   *socket.Socket // the newest one
	stopping bool           // no further one may be made
}

// New makes a runner, and listens: from then on, clients wait instead of finding nobody. What a killed
// runner of the same root has left running is killed. New fails with ErrServed if another runner serves
// the root.
func New(o Options) (*Runner, error) {
	folders, err := cleaned(o.Folders)
	if err != nil {
		return nil, err
	}
	if o.Processes < 0 || o.Processes == 1 {
		return nil, fmt.Errorf("%d processes at once: want 2 or more, so that deletions leave one to others", o.Processes)
	}
	r := &Runner{
		folders: folders, output: cmp.Or(o.Output, defaultOutput), log: o.Log, env: environ(os.Environ()), root: o.Root,
		queue: newQueue(cmp.Or(o.Processes, 2*runtime.NumCPU()), backlog), search: newSearch(o.Mount),
	}
	r.patiences = *cmp.Or(o.patiences, &usual)
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.http = r.newHTTP()
	if err := r.open(o.Mount); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// open does what can fail. The lock of the records comes before the socket, which a second runner would
// take away from the first.
func (r *Runner) open(mount string) (err error) {
	if r.thread, err = newThread(mount); err != nil {
		return err
	}
	if r.records, err = openRecords(r.root.Running()); err != nil {
		return err
	}
	if r.socket, err = socket.Listen(r.root, root.RunnerSocketName, r.log); err != nil {
		return fmt.Errorf("listening on %s: %w", r.root.RunnerSocket(), err)
	}
	return r.endLeftovers()
}

// cleaned returns folders in the form in which they are compared.
func cleaned(folders []string) ([]string, error) {
	if len(folders) == 0 {
		folders = []string{DefaultFolder}
	}
	var clean []string
	for _, f := range folders {
		if !filepath.IsAbs(f) {
			return nil, fmt.Errorf("%q is no folder for plugins: want an absolute path", f)
		}
		clean = append(clean, filepath.Clean(f))
	}
	return clean, nil
}

// Serve answers requests until Shutdown; then it returns nil.
func (r *Runner) Serve() error {
	first := r.socket
	r.ends.Go(r.keepReachable)
	if err := r.http.Serve(first); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving requests: %w", err)
	}
	return nil
}

// presence is the time between two looks for the socket's file.
const presence = time.Second

// keepReachable makes the socket again if somebody has removed its file, until Shutdown.
func (r *Runner) keepReachable() {
	for wait(r.ctx, presence) {
		r.mu.Lock()
		if !r.stopping && !r.socket.There() {
			fresh, err := socket.Listen(r.root, root.RunnerSocketName, r.log)
			if err != nil {
				r.log.Error("nobody can reach berth-runner, because it could not make its socket again", "err", err)
			} else {
				r.log.Warn("somebody removed the socket; it is there again")
				r.socket = fresh
				go func() { _ = r.http.Serve(fresh) }() // it ends with Shutdown, as does Serve's own
			}
		}
		r.mu.Unlock()
	}
}

// lastLook is how long Shutdown waits for the plugins that it has killed.
const lastLook = 6 * time.Second

// Shutdown ends serving. It removes the socket, refuses the requests that wait, and waits for the plugins
// that run until ctx ends. Then it kills them.
func (r *Runner) Shutdown(ctx context.Context) error {
	r.removeSocket()
	r.queue.stop()
	err := r.http.Shutdown(ctx)
	r.stop()
	if err != nil {
		err = fmt.Errorf("waiting for the plugins that run: %w; they are killed", err)
		last, done := context.WithTimeout(context.Background(), lastLook)
		defer done()
		if still := r.http.Shutdown(last); still != nil {
			_ = r.http.Close() // ends what is left; the reason is in err
		}
	}
	return errors.Join(err, r.close())
}

func (r *Runner) removeSocket() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopping = true
	if r.socket != nil {
		r.socket.Remove()
	}
}

// close gives back what open has opened. Plugins that still run end with the thread that started them.
func (r *Runner) close() error {
	r.stop()
	r.ends.Wait()
	r.removeSocket()
	if r.socket != nil {
		_ = r.socket.Close() // http.Server has closed it, if it served
	}
	r.search.close()
	if r.thread != nil {
		r.thread.end()
	}
	if r.records == nil {
		return nil
	}
	return r.records.close()
}
