// Package cni is the protocol's edge: it reads strictly what a runtime passes to a plugin,
// and makes the numbered errors that answer it (CNI specification 1.1).
//
// The plugin links this package, so it has nothing that takes time to start. Code that only the agent needs
// is in packages beside this one: netconf reads a whole configuration, and result writes and reads
// results by the CNI library.
package cni
