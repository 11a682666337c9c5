// Package version says which Berth this is.
package version

// Text is the version of all of Berth's programs; the build sets it.
var Text = "dev"
