package networks

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-net/berth/test/programs"
)

// STATUS says which plugin of which network is not ready, however the plugin says so, or does not say anything. Plugins of lists without
// STATUS, and those that a configuration without delegates does not name, are not asked.
func TestStatus(t *testing.T) {
	n := withFlaky(t)
	status := func(keys ...string) error {
		t.Helper()
		_, err := n.Exec("STATUS", "", "", keys...)
		return err
	}
	newest := n.keys(n.swept("one", "10.1.0.0/24", "1.1.0"), `{"cniVersion":"1.1.0","name":"two","type":"flaky"}`)
	old := n.keys(`{"cniVersion":"1.0.0","name":"two","type":"flaky"}`)
	must(t, os.Symlink(filepath.Join(n.plugins, "tuning"), filepath.Join(n.plugins, "sweeper"))) // a plugin that knows no STATUS of its own
	must(t, status(), status(newest...), status(old...))
	for how, want := range map[string]struct {
		code uint
		says string
	}{
		"fail": {50, "told to fail"}, "limited": {51, "told to be limited"}, "crash": {50, "signal"}, "hang": {50, "did not end within 2"},
	} {
		n.tell("STATUS", how)
		err := status(newest...)
		programs.WantError(t, err, want.code, want.says)
		programs.WantError(t, err, want.code, "network two as net1: plugin flaky")
		must(t, status(), status(old...))
		n.tell("STATUS", "")
	}
	must(t, status(newest...))
	programs.WantError(t, status(n.keys(`{"cniVersion":"1.1.0","name":"two","type":"missing"}`)...), 50, "plugin missing")
	programs.WantError(t, status(`"clusterNetwork":"/none"`), 5, "/none")
	programs.WantError(t, status(`"readinessindicatorfile":"/none"`), 50, "/none")
	n.stopRunner()
	must(t, status(), status(old...))
	programs.WantError(t, status(newest...), 50, "berth-runner")
}
