package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-net/berth/internal/runner/wire"
)

// finding is how long FindInPath waits for the runner: libcni gives it no context.
const finding = 10 * time.Second

// How many bytes of a plugin's stdout and stderr an error shows at most.
const (
	shownOut = 256
	shownErr = 512
)

// Exec has libcni's plugins run by berth-runner (invoke.Exec).
type Exec struct {
	version.PluginDecoder
	Client *Client
	// Timeout is how long a plugin may run; 0: as long as its context.
	Timeout time.Duration
	// Stderr gets what plugins that succeed write to stderr; nil: nobody does.
	Stderr io.Writer
}

// FindInPath asks the runner where a plugin is: the caller may not see the node's files.
func (e *Exec) FindInPath(plugin string, folders []string) (string, error) {
	return e.FindUntil(context.Background(), plugin, folders)
}

// FindUntil is FindInPath, and returns when ctx ends, too.
func (e *Exec) FindUntil(ctx context.Context, plugin string, folders []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, finding)
	defer cancel()
	return e.Client.Find(ctx, plugin, folders)
}

// ExecPlugin runs a plugin and returns what it printed. If the plugin failed and printed an error as the
// specification has it, that is the error. Any other failure of the plugin is a *types.Error, too, with
// the end of stderr. Of environ, the variables of a request go to the plugin; of several of one name, the
// last.
func (e *Exec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	folder, name := filepath.Split(path)
	env := map[string]string{}
	for _, variable := range environ {
		if key, value, ok := strings.Cut(variable, "="); ok && slices.Contains(wire.Variables(), key) {
			env[key] = value
		}
	}
	a, err := e.Client.Run(ctx, wire.Request{
		Find: wire.Find{Type: name, Folders: []string{filepath.Clean(folder)}}, Env: env, Stdin: stdin, Timeout: e.Timeout,
	})
	if err != nil {
		return nil, err
	}
	verb := env[wire.Command]
	if err := failure(name, verb, a); err != nil {
		return nil, err
	}
	if e.Stderr != nil && len(a.Stderr) > 0 {
		_, _ = e.Stderr.Write(a.Stderr) // it is information only
	}
	return a.Stdout, nil
}

// failure says how a plugin failed; nil: it did not. What a plugin printed too much of is its failure
// only if somebody needs what it printed: a DEL that has succeeded has succeeded.
func failure(name, verb string, a *wire.Answer) error {
	cut := a.Printed > int64(len(a.Stdout))
	switch {
	case a.Exit == 0 && cut && (verb == "ADD" || verb == "VERSION"):
		return failed(a, "plugin %s (%s) printed %d bytes; expected at most %d", name, verb, a.Printed, len(a.Stdout))
	case a.Exit == 0:
		return nil
	case a.Lingers:
		return failed(a, "plugin %s (%s) did not end in time, and has not ended since it was killed", name, verb)
	case a.TimedOut:
		return failed(a, "plugin %s (%s) did not end within %v and was killed", name, verb, a.Ran.Round(time.Millisecond))
	case a.Signal != "":
		return failed(a, "plugin %s (%s) was ended by a signal: %s", name, verb, a.Signal)
	}
	printed := types.Error{}
	if len(a.Stdout) > 0 && json.Unmarshal(a.Stdout, &printed) == nil && (printed.Code != 0 || printed.Msg != "") {
		return &printed
	}
	if len(a.Stdout) > 0 {
		return failed(a, "plugin %s (%s) failed with exit status %d and printed no error but %d bytes: %.*q", name, verb, a.Exit, a.Printed, shownOut, a.Stdout)
	}
	return failed(a, "plugin %s (%s) failed with exit status %d and printed no error", name, verb, a.Exit)
}

// failed makes an error, with the end of stderr as its details.
func failed(a *wire.Answer, format string, args ...any) error {
	e := &types.Error{Code: types.ErrInternal, Msg: fmt.Sprintf(format, args...)}
	if text := strings.TrimSpace(string(a.Stderr)); text != "" {
		e.Details = "stderr: " + strings.ToValidUTF8(text[max(0, len(text)-shownErr):], "?")
	}
	return e
}
