package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// timed is a plugin that executes another one, by its path, and notes the verb, how long that took in ns, its exit code, the network namespace
// ("-": none), and CNI_ARGS.
const timed = `#!/bin/sh
began=$(date +%%s%%N)
%s
code=$?
ended=$(date +%%s%%N)
[ "$CNI_COMMAND" = VERSION ] || echo "$CNI_COMMAND $((ended - began)) $code ${CNI_NETNS:--} $CNI_ARGS" >> /var/log/cni-times
exit $code
`

// timePlugin writes a plugin of a name that executes the one at a path of the node, and times it.
func (n *node) timePlugin(name, path string) {
	n.t.Helper()
	n.write("opt/cni/bin/"+name, fmt.Sprintf(timed, path))
	must(n.t, os.Chmod(filepath.Join(n.disk, "opt/cni/bin", name), 0o755))
}

// timing is one execution of a plugin that is timed.
type timing struct {
	verb  string
	took  time.Duration
	well  bool   // it succeeded
	netns string // "-": none
	pod   string // its name
}

// timings returns what the node's plugins have noted since the file was emptied, in the order of their ends.
func (n *node) timings() (all []timing) {
	n.t.Helper()
	raw, err := os.ReadFile(filepath.Join(n.disk, "var/log/cni-times"))
	must(n.t, err)
	for line := range strings.Lines(string(raw)) {
		f := append(strings.Fields(line), "")
		if len(f) < 5 || !strings.HasSuffix(line, "\n") {
			continue // the line is being written
		}
		ns, err := strconv.ParseInt(f[1], 10, 64)
		must(n.t, err)
		_, pod, _ := strings.Cut(f[4], "K8S_POD_NAME=")
		pod, _, _ = strings.Cut(pod, ";")
		all = append(all, timing{f[0], time.Duration(ns), f[2] == "0", f[3], pod})
	}
	return all
}

// times returns how long those executions took that are of a verb and of one sort, in order.
func (n *node) times(verb string, of func(timing) bool) (all []time.Duration) {
	n.t.Helper()
	for _, e := range n.timings() {
		if e.verb == verb && of(e) {
			all = append(all, e.took)
		}
	}
	slices.Sort(all)
	return all
}

// rank returns the duration that so many percent do not exceed. sorted must not be empty.
func rank(sorted []time.Duration, percent int) time.Duration {
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)].Round(10 * time.Microsecond)
}
