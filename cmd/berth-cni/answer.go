package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
	"github.com/berth-net/berth/internal/cni/wire"
)

// answer returns what an agent's answer means: something to print, or a numbered error. answer
// returns err if the agent's answer is useless. An answer is useless if no agent gives it. If the
// plugin can do the verb without the agent, an answer is also useless if it says that the agent
// cannot serve in its node's present state (status 500 and above, or a code from 100 on).
// cni.MsgUnsure is never useless: this plugin knows no better than the agent whether the DEL is
// about the pod; only a new process can know.
func (c *call) answer(resp wire.Response) (out []byte, e *api.Error, err error) {
	if out, ok := c.success(resp); ok {
		return out, nil, nil
	}
	if e := parseError(resp); e != nil && c.reserve > 0 && e.Msg != cni.MsgUnsure && (resp.Status >= 500 || e.Code >= cni.CodeExhausted) {
		return nil, nil, fmt.Errorf("the agent answers with HTTP status %d: %w", resp.Status, e)
	} else if e != nil {
		return nil, e, nil
	}
	return nil, nil, fmt.Errorf("HTTP status %d with a body that this plugin cannot read: %.100q", resp.Status, resp.Body)
}

// result accepts ADD's result, which the agent has put into the configuration's version.
func result(resp wire.Response) ([]byte, bool) {
	_, err := scan.Object(resp.Body)
	return resp.Body, resp.Status == 200 && err == nil
}

// released accepts an api.Deleted, also if something is still owed (206), because the agent
// has promised to release what it owes. released also accepts the agent's answer that there is
// nothing to delete.
func released(resp wire.Response) ([]byte, bool) {
	switch resp.Status {
	case 200, 206:
		return nil, field(resp.Body, "released") != nil
	case 404: // a server that is no agent may answer this, too
		e := parseError(resp)
		return nil, e != nil && e.Code == cni.CodeUnknown
	}
	return nil, false
}

func nothing(resp wire.Response) ([]byte, bool) { return nil, resp.Status == 200 }

// parseError reads an api.Error; nil if the answer is not one.
func parseError(resp wire.Response) *api.Error {
	code, err := strconv.ParseUint(string(field(resp.Body, "code")), 10, 32)
	if err != nil || code == 0 || resp.Status < 400 {
		return nil
	}
	msg, err := scan.String(field(resp.Body, "msg"))
	if err != nil {
		return nil
	}
	details, _ := scan.String(field(resp.Body, "details"))
	return &api.Error{Code: uint(code), Msg: msg, Details: details}
}

// field returns the value of a key of a JSON object; nil if there is none.
func field(raw []byte, key string) []byte {
	fields, err := scan.Object(raw)
	if err != nil {
		return nil
	}
	for _, f := range fields {
		if f.Key == key {
			return f.Value
		}
	}
	return nil
}

// tryAgain is the error if the agent is away.
func tryAgain(c *call, err error) *api.Error { return c.unanswered(cni.CodeTryAgain, err) }

// notAvailable is tryAgain for STATUS.
func notAvailable(c *call, err error) *api.Error { return c.unanswered(cni.CodeNotAvailable, err) }

// unanswered returns the error that says why there is no answer.
func (c *call) unanswered(code uint, err error) *api.Error {
	if e := c.noRoot(); e != nil {
		return e
	}
	return cni.Errorf(code, "the agent does not answer", "%v; is berthd running with --root %s?", err, c.head.Root)
}

// noRoot returns an error if the root directory is not there. The directory will not appear by
// itself, so the configuration is wrong, and the agent is not to blame.
func (c *call) noRoot() *api.Error {
	dir := string(c.head.Root)
	if info, err := os.Stat(dir); errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || err == nil && !info.IsDir() {
		return cni.Errorf(cni.CodeConfig, "invalid configuration", "root is %.200q, which is not a directory; expected the --root of an agent", dir)
	}
	return nil
}

// noAgent returns an error if no agent has ever run with the root: nobody would read a
// deletion that is queued at that root. An agent that has lost its state still has its run folder. An
// agent that has not been started since the boot still has its instance file. If both are gone, the
// state folder, or a link of the pod by ADD's result or by its interface, still tells of an agent.
// But if the agent of the pod's link runs all the same, that agent has another root, and noAgent
// returns an error. (The state folder alone is no sign of an agent: the plugin makes the folder,
// too, for the queue.)
func (c *call) noAgent() *api.Error {
	if e := c.noRoot(); e != nil {
		return e
	}
	dir := c.head.Root
	if there(dir.Instance()) || there(dir.Run()) {
		return nil
	}
	const invalid = "invalid configuration"
	if c.head.HostVeth == "" && !there(dir.State()) && !c.orphaned() {
		return cni.Errorf(cni.CodeConfig, invalid, "root is %.200q, but no agent has ever run with this root; does berthd have another --root?", dir)
	}
	link, who := c.elsewhere()
	if link == "" {
		return nil
	}
	return cni.Errorf(cni.CodeConfig, invalid,
		"root is %.200q, but no agent has ever run with this root, and the pod's link %s belongs to a running agent: %.200s", dir, link, who)
}

// there reports whether a file is there, or may be there.
func there(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR)
}

// print prints a verb's output, if it has any, and returns the exit status.
func (p *plugin) print(out []byte) int {
	if len(out) == 0 {
		return 0
	}
	if _, err := p.stdout.Write(out); err != nil {
		fmt.Fprintf(p.stderr, "berth-cni: writing to stdout: %v\n", err)
		return 1
	}
	return 0
}

// fail prints an error in the version of the configuration, and returns the exit status.
func (p *plugin) fail(version string, e *api.Error) int {
	out := scan.AppendString([]byte(`{"cniVersion":`), printable(version))
	out = strconv.AppendUint(append(out, `,"code":`...), uint64(e.Code), 10)
	out = scan.AppendString(append(out, `,"msg":`...), e.Msg)
	if e.Details != "" {
		out = scan.AppendString(append(out, `,"details":`...), e.Details)
	}
	p.print(append(out, "}\n"...))
	return 1
}

// printable returns version if Berth speaks it, and the newest version otherwise.
func printable(version string) string {
	if cni.CheckVersion("ADD", version) != nil {
		return cni.CurrentVersion
	}
	return version
}
