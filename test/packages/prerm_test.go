package packages

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// A package stays if berth cannot say what its removal would do, whatever the reason: otherwise the
// runtime's configuration would stay without an agent.
func TestPackageStaysIfUninstallFails(t *testing.T) {
	for _, code := range []string{"1", "3"} {
		dir := t.TempDir()
		nettest.Must(t, os.WriteFile(filepath.Join(dir, "berth"), []byte("#!/bin/sh\necho what would be removed; echo berth: the record is broken >&2\nexit "+code+"\n"), 0o755))
		cat, err := exec.LookPath("cat")
		nettest.Must(t, err)
		nettest.Must(t, os.Symlink(cat, filepath.Join(dir, "cat")))
		cmd := exec.Command("/bin/sh", "../../build/scripts/prerm", "remove")
		cmd.Env = []string{"PATH=" + dir} // no systemctl: the script must not get so far
		said, err := cmd.CombinedOutput()
		var failed *exec.ExitError
		if !errors.As(err, &failed) || failed.ExitCode() != 1 || !strings.Contains(string(said), "the record is broken") || !strings.Contains(string(said), "nothing is changed") ||
			strings.Contains(string(said), "would be removed") {
			t.Errorf("berth uninstall --dry-run ends with %s: prerm %v: %s", code, err, said)
		}
	}
}
