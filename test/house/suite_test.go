package house

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// Who uses the suite gets nothing of Berth along with it: neither Berth's packages nor what only these need. What both modules need, they
// need in the same version, so that `berth conform` and cni-conform judge alike.
func TestSuiteIsAlone(t *testing.T) {
	berth, suite := required(t, "."), required(t, "conform")
	if _, linked := suite[strings.TrimSuffix(module, "/")]; linked || len(suite) < 5 {
		t.Errorf("the suite's module requires Berth, or nothing: %v", suite)
	}
	for path, version := range suite {
		if berth[path] != version {
			t.Errorf("%s: the suite requires %s, and Berth %q", path, version, berth[path])
		}
	}
}

// required returns the versions of the modules that the go.mod in a folder of the tree names, for packages and indirectly.
func required(t *testing.T, folder string) map[string]string {
	t.Helper()
	cmd := exec.Command("go", "mod", "graph")
	cmd.Dir = "../../" + folder
	out, err := cmd.Output()
	nettest.Must(t, err)
	all := map[string]string{}
	for line := range strings.Lines(string(out)) {
		of, needs, _ := strings.Cut(strings.TrimSpace(line), " ")
		if path, version, found := strings.Cut(needs, "@"); found && !strings.Contains(of, "@") && path != "go" && path != "toolchain" {
			all[path] = version
		}
	}
	return all
}
