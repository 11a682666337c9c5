package conform

import (
	"encoding/json"
	"fmt"
	"slices"
)

// versionChecks are about VERSION.
var versionChecks = []Check{
	{
		Name: "version/answer", Level: Must, Spec: "CNI 1.1.0, section 5, VERSION Success; 0.4.0, Parameters, VERSION",
		Says: "the answer to VERSION lists the versions that the plugin supports, among them the list's",
		Each: true,
		run:  versionAnswer,
	},
	{
		Name: "version/echo", Level: Must, Spec: "CNI 1.0.0 and 1.1.0, section 5, VERSION Success: cniVersion",
		Says: "the cniVersion of the answer to VERSION is that of the request",
		Each: true, Since: "1.0.0", Needs: []string{"version/answer"}, run: versionEcho,
	},
	{
		Name: "version/newer", Level: Should, Spec: "CNI 1.1.0, section 2, VERSION, and section 1, Version considerations",
		Says:  "a runtime of a newer CNI version can ask which versions the plugin supports",
		Needs: []string{"version/answer"}, run: versionNewer,
	},
}

// unknowable is a version that no plugin can speak.
const unknowable = "9.9.9"

// versionInfo is the answer to VERSION.
type versionInfo struct {
	Version   string   `json:"cniVersion"`
	Supported []string `json:"supportedVersions"`
}

// askVersion executes VERSION of a plugin.
func (t *T) askVersion(plugin int, version string) (Answer, versionInfo, error) {
	got := t.Exec(Call{
		Type: t.list().Plugins[plugin].Type, Verb: "VERSION",
		Stdin: fmt.Appendf(nil, `{"cniVersion":%q}`, version),
	})
	var info versionInfo
	err := json.Unmarshal(got.Stdout, &info)
	return got, info, err
}

func versionAnswer(t *T) {
	for i := range t.list().Plugins {
		got, info, err := t.askVersion(i, t.Version)
		switch {
		case !got.OK():
			t.Failf("VERSION fails: %s", got)
		case err != nil:
			t.Failf("the answer to VERSION is not a version result: %v: %s", err, got)
		case info.Version == "":
			t.Failf(`the answer lacks "cniVersion": %s`, got)
		case len(info.Supported) == 0:
			t.Failf(`the answer lacks "supportedVersions": %s`, got)
		case !slices.Contains(info.Supported, t.suite.list.Version):
			t.Failf("the list's version %s is not among the supported versions: %s", t.suite.list.Version, got)
		}
	}
}

func versionEcho(t *T) {
	for i := range t.list().Plugins {
		if got, info, _ := t.askVersion(i, t.Version); got.OK() && info.Version != t.Version {
			t.Failf("the request is in version %s, the answer in %s: %s", t.Version, info.Version, got)
		}
	}
}

// versionNewer accepts a list of versions with any exit code: the specification leaves the exit
// code open (containernetworking/cni#826).
func versionNewer(t *T) {
	for i := range t.list().Plugins {
		switch got, info, err := t.askVersion(i, unknowable); {
		case err != nil || len(info.Supported) == 0:
			t.Failf("asked in version %s, the plugin does not say which versions it supports: %s", unknowable, got)
		case !got.OK():
			t.Notef("asked in version %s, the plugin says which versions it supports, but ends with exit code %d", unknowable, got.Exit)
		}
	}
}
