// Package cni is the protocol's edge: what a runtime passes to a plugin, read
// strictly, and the numbered errors that answer it (CNI specification 1.1).
//
// The plugin links it, so that it has nothing that takes time to start. What
// the agent alone needs lies beside it: netconf reads the whole of a
// configuration, result writes and reads results by the CNI library.
package cni
