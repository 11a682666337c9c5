package deploy

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"go.yaml.in/yaml/v3"

	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// berthd.yaml shows every key with its right default, but sets only pools: the other keys are
// comments. So a berthd of a former version, which may know fewer keys, reads the installed
// file.
func TestConfig(t *testing.T) {
	text, err := os.ReadFile("berthd.yaml")
	nettest.Must(t, err)
	var named map[string]any
	nettest.Must(t, yaml.Unmarshal(text, &named))
	if named["pools"] == nil || len(named) != 1 {
		t.Errorf("berthd.yaml names %q", slices.Sorted(maps.Keys(named)))
	}

	dir := root.Dir(t.TempDir()) // has no configuration file
	every := filepath.Join(string(dir), "every.yaml")
	text = regexp.MustCompile(`(?m)^#([a-zA-Z])`).ReplaceAll(text, []byte("$1"))
	nettest.Must(t, os.WriteFile(every, text, 0o644))
	nettest.Must(t, yaml.Unmarshal(text, &named))
	shown, err := config.Load(dir, config.Flags{File: every})
	nettest.Must(t, err)
	bare, err := config.Load(dir, config.Flags{Pools: []string{"default=10.88.0.0/16,fd00:88::/64"}})
	nettest.Must(t, err)
	shown.Masquerade.ExcludedCIDRs = nil // an empty list means the same as none
	inCluster := filepath.Join(string(dir), "cluster.yaml")
	nettest.Must(t, os.WriteFile(inCluster, []byte("kubernetes: {node: node-1}\n"), 0o644))
	cluster, err := config.Load(dir, config.Flags{File: inCluster})
	nettest.Must(t, err)
	if !shown.Kubernetes.Is(cluster.Kubernetes) {
		t.Errorf("berthd.yaml shows %+v, and the defaults in a cluster are %+v", shown.Kubernetes, cluster.Kubernetes)
	}
	shown.Kubernetes = nil // by default a node belongs to none
	if !reflect.DeepEqual(shown, bare) {
		t.Errorf("berthd.yaml shows %+v, and the defaults are %+v", shown, bare)
	}
	for _, key := range reflect.VisibleFields(reflect.TypeFor[config.Config]()) {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(named)), func(name string) bool { return strings.EqualFold(name, key.Name) }) {
			t.Errorf("berthd.yaml does not show %s", key.Name)
		}
	}
}

// libcni can read the list, and the plugin can read what libcni makes of it.
func TestConflist(t *testing.T) {
	list, err := libcni.NetworkConfFromBytes(Conflist)
	nettest.Must(t, err)
	if list.CNIVersion != "1.1.0" || len(list.Plugins) != 1 {
		t.Errorf("libcni makes version %s and %d plugins of it", list.CNIVersion, len(list.Plugins))
	}
	conf, err := libcni.InjectConf(list.Plugins[0], map[string]any{"name": list.Name, "cniVersion": list.CNIVersion})
	nettest.Must(t, err)
	if _, e := netconf.Parse(conf.Bytes); e != nil {
		t.Error(e)
	}
	if got := slices.Sorted(maps.Keys(conf.Network.Capabilities)); !slices.Equal(got, netconf.Capabilities()) {
		t.Errorf("it declares %q, and Berth has %q", got, netconf.Capabilities())
	}
}
