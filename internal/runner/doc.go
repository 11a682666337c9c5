// Package runner runs CNI plugins for the agent, which cannot run any itself: the agent's unit takes
// nearly all rights from it, and in a container the agent does not see the node's files. The program
// berth-runner is this package and little else.
//
// A request (serve.go) is checked (check.go), waits for its container's turn and for a place (queue.go),
// looks for its plugin (search.go), and becomes a process (process.go), which is started by a thread in
// the node's mount namespace (thread.go). Its output is bounded (output.go).
//
// The runner does not use internal/daemon/server, of which it shares the socket
// (internal/daemon/socket): the server gives a request its place before it reads the request's body, and
// here the body says whose turn has to be waited for; its places for deletions are a quarter, and none
// if there are only two or three places; and it has a ledger to wait for, spans and metrics, and the
// runner has none of these.
//
// # What is killed, and when
//
// CNI has no way to ask a plugin to stop. So a plugin whose time is over, or whose client has left, is
// killed with its process group, by SIGKILL. SIGTERM would end most plugins at the same instruction, as
// hardly any handles it; and one that handled it would clean up beside the DEL that the caller owes after
// any ADD that failed.
//
// A plugin that exits by itself may leave children: the runner does not wait for them, and lets them
// live, as a plugin may have started a daemon on purpose.
//
// If the runner itself is killed, each plugin dies at once (PR_SET_PDEATHSIG). The kernel does not tell
// the plugin's own children, such as an IPAM plugin that has an address half reserved. The next runner
// finds these by a token in their environment (records.go) and kills them, and runs nothing for their
// container until they have ended (leftovers.go). Else half a plugin could go on beside its retry.
//
// A plugin that prints too much is not killed: it is read until it ends, and the rest is dropped. Half a
// DEL would be worse than a long one, and the time of the request is a bound anyway.
package runner
