package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// Of libcni's cache, uninstall removes what this root's plugin made alone. A dry run removes nothing.
func TestRemoveCached(t *testing.T) {
	a := &app{root: t.TempDir()}
	dir := filepath.Join(a.root, "var/lib/cni/results")
	nettest.Must(t, os.MkdirAll(dir, 0o700))
	for network, plugin := range map[string]string{
		"mine": fmt.Sprintf(`"type":"berth-cni","root":%q`, a.root), "others": `"type":"berth-cni"`, "former": `"type":"bridge"`,
	} {
		raw, err := json.Marshal(map[string]any{"kind": "cniCacheV1", "containerId": "c", "ifName": "eth0", "networkName": network,
			"config": fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":%q,"plugins":[{%s}]}`, network, plugin),
			"result": map[string]any{"cniVersion": "1.0.0", "ips": []any{}}})
		nettest.Must(t, err)
		nettest.Must(t, os.WriteFile(filepath.Join(dir, network+"-c-eth0"), raw, 0o600))
	}
	left := func() (names []string) {
		entries, err := os.ReadDir(dir)
		nettest.Must(t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	for _, test := range []struct {
		dry    bool
		action string
		left   []string
	}{
		{true, "would be removed", []string{"former-c-eth0", "mine-c-eth0", "others-c-eth0"}},
		{false, "removed", []string{"former-c-eth0", "others-c-eth0"}},
	} {
		done, err := a.removeCached(test.dry)
		nettest.Must(t, err)
		want := []fileView{{File: filepath.Join(dir, "mine-c-eth0"), Action: test.action}}
		if !slices.Equal(done, want) || !slices.Equal(left(), test.left) {
			t.Errorf("dry run %t: %+v; left is %q", test.dry, done, left())
		}
	}
}
