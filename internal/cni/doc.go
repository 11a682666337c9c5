// Package cni is the protocol's edge: what a runtime passes to a plugin, read
// strictly, and the numbered errors that answer it (CNI specification 1.1).
//
// The plugin links it, so that it has no package that weighs more than the
// plugin: results, which need the CNI library, are in cni/result.
package cni
