// Package root says where an agent's files lie. One directory moves them all:
// "/" on a node, anything else in a test or for a second agent on one host.
package root

import "path/filepath"

// Dir is an agent's root directory.
type Dir string

// Default is the root of a node's own agent.
const Default Dir = "/"

// Run is the folder for what ends with the boot.
func (d Dir) Run() string { return filepath.Join(string(d), "run/berth") }

// State is the folder for what outlives a boot.
func (d Dir) State() string { return filepath.Join(string(d), "var/lib/berth") }

// Socket is the socket of the agent's API.
func (d Dir) Socket() string { return filepath.Join(d.Run(), SocketName) }

// SocketName is the API socket's name in Run, for those who reach it through a
// directory's file descriptor: a socket's path has at most 107 bytes (unix(7)).
const SocketName = "berthd.sock"

// RunnerSocket is the socket of berth-runner, which runs CNI plugins for the agent.
func (d Dir) RunnerSocket() string { return filepath.Join(d.Run(), RunnerSocketName) }

// RunnerSocketName is the name of berth-runner's socket in Run.
const RunnerSocketName = "runner.sock"

// Running is the folder in which berth-runner keeps what it must know if it is killed: which plugins
// run.
func (d Dir) Running() string { return filepath.Join(d.Run(), "running") }

// Epoch is the marker: a file that says where the agent served last, and that a reboot takes away.
func (d Dir) Epoch() string { return filepath.Join(d.Run(), "epoch") }

// Missed is the mark of an agent that found its nftables table missing or changed, until the agent
// has deleted what began meanwhile in connection tracking. A reboot takes the mark away, as it does
// these connections.
func (d Dir) Missed() string { return filepath.Join(d.Run(), "missed") }

// Ledger is the ledger's file.
func (d Dir) Ledger() string { return filepath.Join(d.State(), "ledger.db") }

// Instance is the file with the agent's instance id.
func (d Dir) Instance() string { return filepath.Join(d.State(), "instance") }

// WireGuardKey is the file with the node's private key of WireGuard. It outlives the agent: another key is another node for all others.
func (d Dir) WireGuardKey() string { return filepath.Join(d.State(), "wireguard.key") }

// Config is the agent's configuration.
func (d Dir) Config() string { return filepath.Join(string(d), "etc/berth/berthd.yaml") }
