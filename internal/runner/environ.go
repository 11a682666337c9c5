package runner

import (
	"maps"
	"slices"
	"strings"
)

// defaultPath is the PATH of plugins if the runner has none.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// private says which variables are meant for the runner alone: the supervisor's socket and those that
// tune its Go runtime, and what requests and the runner itself set.
func private(name string) bool {
	for _, prefix := range []string{"CNI_", "BERTH_", "LISTEN_", "WATCHDOG_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return slices.Contains([]string{"NOTIFY_SOCKET", "INVOCATION_ID", "JOURNAL_STREAM", "GOMEMLIMIT", "GOGC", "GOMAXPROCS", "GODEBUG", "GOTRACEBACK"}, name)
}

// environ returns what plugins have of the runner's own environment.
func environ(own []string) (env []string) {
	path := false
	for _, variable := range own {
		name, _, _ := strings.Cut(variable, "=")
		if private(name) {
			continue
		}
		path = path || name == "PATH"
		env = append(env, variable)
	}
	if !path {
		env = append(env, defaultPath)
	}
	return env
}

// environOf returns the environment of an execution: the runner's own part, the request's, and the token
// of the execution's record.
func (r *Runner) environOf(asked map[string]string, token string) []string {
	env := slices.Clip(r.env)
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		env = append(env, name+"="+asked[name])
	}
	return append(env, tokenVariable+"="+token)
}
