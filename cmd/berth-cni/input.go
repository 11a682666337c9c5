package main

import (
	"io"
	"strings"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/deletions"
)

// call is a verb with its input.
type call struct {
	verb
	started, running  int64 // CLOCK_BOOTTIME in nanoseconds: the runtime asked for the verb between the two
	deadline          int64 // CLOCK_BOOTTIME in nanoseconds
	container, ifname string
	netns             string // path
	args              string // CNI_ARGS as it was given
	trace             string
	raw               []byte // stdin
	head              cni.Head
	lo                bool   // the program is called as the plugin loopback
	found             bool   // the cut has found a link of this attachment
	down              bool   // a link of this attachment is down
	noPod             bool   // the pod's network namespace is not at its path, where nothing or a plain file is
	unsure            string // a link of this attachment, of an ADD that began after started and before running
	queued            *deletions.Record
	nobodys           uint32 // the link that prevResult names, if its alias is nobody's; 0: the alias is somebody's
}

// read reads the environment, then stdin. On an error the call has as much as read has found
// out, and at least the version to print the error in.
func (p *plugin) read(name string, v verb) (*call, *api.Error) {
	started, parent := p.startOf(p.began)
	c := &call{verb: v, lo: p.name == loopback, started: started, running: p.began, deadline: p.began + int64(v.limit), trace: p.getenv("TRACEPARENT")}
	if parent && v.adds {
		c.started = c.running
	}
	c.head.Version = cni.CurrentVersion
	c.container, c.ifname = p.getenv("CNI_CONTAINERID"), p.getenv("CNI_IFNAME")
	c.netns, c.args = p.getenv("CNI_NETNS"), p.getenv("CNI_ARGS")
	// Read stdin even if the environment is wrong: stdin has the version to print the error in, and
	// SIGPIPE would kill a runtime that still writes to it.
	raw, e := p.readStdin(c.deadline)
	if e != nil {
		return c, first(c.checkEnv(), e)
	}
	c.raw = raw
	parse := cni.ParseHead
	if v.lenient {
		parse = cni.ParseDel
	}
	c.head, e = parse(raw)
	c.lo = c.lo || c.head.Loopback
	if e := first(c.checkEnv(), e); e != nil {
		return c, e
	}
	if v.lenient { // a pod that was attached in one version can be deleted in any
		return c, nil
	}
	return c, cni.CheckVersion(name, c.head.Version)
}

// checkEnv checks the variables that the verb needs (CNI 1.1, section 2).
func (c *call) checkEnv() *api.Error {
	if !c.pod {
		return nil
	}
	var missing []string
	for _, v := range []struct {
		name, value string
		needed      bool
	}{
		{"CNI_CONTAINERID", c.container, true},
		{"CNI_NETNS", c.netns, c.netnsNeeded},
		{"CNI_IFNAME", c.ifname, true},
	} {
		if v.needed && v.value == "" {
			missing = append(missing, v.name)
		}
	}
	if len(missing) > 0 {
		names := strings.Join(missing, ", ")
		return cni.Errorf(cni.CodeEnv, "missing environment variable "+names, "%s must be set for this verb", names)
	}
	e := cni.CheckContainerID(c.container)
	if !c.lo { // the plugin loopback is about lo, whatever CNI_IFNAME says
		e = first(e, cni.CheckIfname(c.ifname))
	}
	if e != nil || !c.netnsNeeded {
		return e
	}
	_, e = cni.ParseArgs(c.args)
	return first(cni.CheckNetnsPath(c.netns), e)
}

// readStdin reads the configuration, of at most api.MaxBody bytes.
func (p *plugin) readStdin(deadline int64) ([]byte, *api.Error) {
	raw := make([]byte, 0, 4096)
	for {
		n, err := p.stdin(raw[len(raw):cap(raw)], deadline)
		raw = raw[:len(raw)+n]
		switch {
		case err == io.EOF:
			return raw, nil
		case err != nil:
			return nil, cni.Errorf(cni.CodeIO, "reading stdin", "%v, after %d bytes and %v", err, len(raw), time.Duration(deadline-p.began))
		case len(raw) > api.MaxBody:
			return nil, tooLarge()
		case len(raw) == cap(raw):
			raw = append(raw, 0)[:len(raw)] // grow
		}
	}
}

func tooLarge() *api.Error {
	return cni.Errorf(cni.CodeConfig, "the configuration is too large", "a request may have at most %d bytes", api.MaxBody)
}

// first returns the first of the errors that is not nil; nil if all are nil.
func first(errs ...*api.Error) *api.Error {
	for _, e := range errs {
		if e != nil {
			return e
		}
	}
	return nil
}
