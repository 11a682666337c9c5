package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
	"github.com/berth-net/berth/internal/cni/wire"
	"github.com/berth-net/berth/internal/version"
)

// versionLimit is how long VERSION waits for its stdin.
const versionLimit = 5 * time.Second

// run does what CNI_COMMAND says, and returns the exit status.
func (p *plugin) run() int {
	command := p.getenv("CNI_COMMAND")
	switch {
	case command == "" && (p.typed || !p.called()):
		p.about()
		return 0
	case command == "VERSION":
		return p.print(p.supported())
	}
	v, ok := verbs[command]
	if !ok {
		return p.fail(cni.CurrentVersion, cni.EnvError("CNI_COMMAND", command, "ADD, DEL, CHECK, GC, STATUS or VERSION"))
	}
	if p.typed {
		p.about()
	}
	c, e := p.read(command, v)
	if e != nil {
		return p.fail(c.head.Version, e)
	}
	var out []byte
	if c.lo {
		out, e = c.loopback(command)
	} else {
		out, e = c.ask()
	}
	if e != nil {
		return p.fail(c.head.Version, e)
	}
	return p.print(out)
}

// ask sends the verb's request, and returns what is printed on success.
func (c *call) ask() ([]byte, *api.Error) {
	r := wire.Request{Started: c.started, Running: c.running, Deadline: c.deadline - int64(c.reserve), Trace: c.trace}
	if c.awaits {
		r.Await = c.running + int64(c.head.AddWait)
	}
	if e := c.request(c, &r); e != nil {
		return nil, e
	}
	if len(r.Body) > api.MaxBody {
		return nil, tooLarge()
	}
	resp, err := wire.Do(c.head.Root, r)
	if err != nil {
		return nil, c.away(c, err)
	}
	out, e, err := c.answer(resp)
	if err != nil {
		return nil, c.away(c, err)
	}
	return out, e
}

// called reports whether a container runtime seems to have executed the plugin.
func (p *plugin) called() bool {
	for _, name := range []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"} {
		if p.getenv(name) != "" {
			return true
		}
	}
	return false
}

// about tells a person what this program is.
func (p *plugin) about() {
	fmt.Fprintf(p.stderr, "CNI plugin berth-cni %s: executed by container runtimes, configured by stdin; see `berth --help`\n"+
		"CNI protocol versions supported: %s\n", version.Text, strings.Join(cni.Versions(), ", "))
}

// supported returns the answer to VERSION, in the version that stdin names.
func (p *plugin) supported() []byte {
	current := cni.CurrentVersion
	if !p.typed {
		raw, _ := p.readStdin(p.began + int64(versionLimit))
		current = printable(cni.ParseVersion(raw))
	}
	out := scan.AppendString([]byte(`{"cniVersion":`), current)
	out = append(out, `,"supportedVersions":[`...)
	for i, v := range cni.Versions() {
		if i > 0 {
			out = append(out, ',')
		}
		out = scan.AppendString(out, v)
	}
	return append(out, "]}\n"...)
}
