// Package wire has what berth-runner and its clients say to each other: JSON over HTTP, on a unix
// socket. Refusals are *api.Error.
package wire

import "time"

// The runner's paths. Both take a POST.
const (
	PathRun  = "/v1/run"  // a Request; the answer is an Answer
	PathFind = "/v1/find" // a Find; the answer is a Found
)

// Bounds of a request.
const (
	MaxStdin   = 1 << 20         // bytes of a plugin's stdin
	MaxBody    = 3 << 19         // bytes: the stdin in base64, and all else
	MaxFolders = 16              // that are searched for a plugin
	MaxValue   = 16 << 10        // bytes of one variable of the environment
	MaxTimeout = 5 * time.Minute // no runtime waits longer for a plugin
)

// Messages of refusals of a Request whose plugin was not executed, whatever the reason.
const (
	MsgAbsent    = "a plugin is not there"
	MsgUnrunable = "a plugin cannot be run"
	MsgNoTurn    = "a plugin did not get its turn"
)

// Variables of the environment that a request may set. All others are the runner's own.
const (
	Command       = "CNI_COMMAND"
	ContainerID   = "CNI_CONTAINERID"
	Netns         = "CNI_NETNS"
	Ifname        = "CNI_IFNAME"
	Args          = "CNI_ARGS"
	Path          = "CNI_PATH"
	NetnsOverride = "CNI_NETNS_OVERRIDE"
)

// Variables lists these variables.
func Variables() []string {
	return []string{Command, ContainerID, Netns, Ifname, Args, Path, NetnsOverride}
}

// Request asks for one execution of one plugin.
type Request struct {
	Find
	Env     map[string]string `json:"env"`             // of Variables
	Stdin   []byte            `json:"stdin,omitempty"` // the plugin's configuration
	Timeout time.Duration     `json:"timeout"`         // how long the plugin may run, from its start; ns
}

// Answer says how an execution ended.
type Answer struct {
	Path   string `json:"path"`             // of the plugin
	Exit   int    `json:"exit"`             // the exit status; -1 if the plugin did not exit by itself
	Signal string `json:"signal,omitempty"` // the signal that ended the plugin, such as "killed"
	// TimedOut says that the runner killed the plugin, because the time of the request was over.
	TimedOut bool `json:"timedOut,omitempty"`
	// Lingers says that the plugin has not ended although it was killed: the kernel keeps it. The runner
	// runs nothing for the same container until the plugin has ended.
	Lingers bool   `json:"lingers,omitempty"`
	Stdout  []byte `json:"stdout,omitempty"` // the beginning of what the plugin printed
	// Printed is how many bytes the plugin printed. If Stdout has less, the rest was too much.
	Printed int64         `json:"printed"`
	Stderr  []byte        `json:"stderr,omitempty"` // the end of what the plugin wrote there
	Waited  time.Duration `json:"waited"`           // for the container's turn and a place; ns
	Ran     time.Duration `json:"ran"`              // ns
}

// Find asks where a plugin is.
type Find struct {
	Type    string   `json:"type"`    // the name of the plugin's file
	Folders []string `json:"folders"` // that are searched, in this order
}

// Found says where a plugin is.
type Found struct {
	Path string `json:"path"`
}
