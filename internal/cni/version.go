package cni

import (
	"slices"
	"strings"

	"github.com/berth-net/berth/api"
)

// CurrentVersion is the newest version of the specification that Berth speaks.
const CurrentVersion = "1.1.0"

// firstVersion is the version of a configuration without cniVersion, as in libcni.
const firstVersion = "0.1.0"

// versions are in order. A test compares them with the CNI library's.
var versions = [...]string{firstVersion, "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", CurrentVersion}

// Versions returns the supported versions of the specification, oldest first.
func Versions() []string { return slices.Clone(versions[:]) }

func versionList() string { return strings.Join(versions[:], ", ") }

// CheckVersion checks that Berth speaks a version, and that the version has the verb.
func CheckVersion(verb, version string) *api.Error {
	at := slices.Index(versions[:], version)
	if at < 0 {
		return versionError(version)
	}
	since := firstVersion
	switch verb {
	case "CHECK":
		since = "0.4.0"
	case "GC", "STATUS":
		since = "1.1.0"
	}
	if at < slices.Index(versions[:], since) {
		return verbError(verb, version, since)
	}
	return nil
}
