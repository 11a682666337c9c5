// Package deploy has the files with which Berth is installed on a node.
package deploy

import _ "embed" // for Conflist

// Conflist is the runtime's configuration for a node's own agent (CNI 1.1, section 1). Old
// runtimes read its cniVersion; runtimes of CNI 1.1 choose one of its cniVersions.
//
//go:embed 10-berth.conflist
var Conflist []byte
