package deploy

import (
	"reflect"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/root"
)

// berthd.yaml says every default, and says it right.
func TestConfig(t *testing.T) {
	dir := root.Dir(t.TempDir()) // without a file
	shown, err := config.Load(dir, config.Flags{File: "berthd.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	bare, err := config.Load(dir, config.Flags{Pools: []string{"default=10.88.0.0/16,fd00:88::/64"}})
	if err != nil {
		t.Fatal(err)
	}
	shown.Masquerade.ExcludedCIDRs = nil // an empty list is as good as none
	if !reflect.DeepEqual(shown, bare) {
		t.Errorf("berthd.yaml says %+v, and the defaults are %+v", shown, bare)
	}
}

// libcni reads the list, and the plugin what libcni makes of it.
func TestConflist(t *testing.T) {
	list, err := libcni.NetworkConfFromBytes(Conflist)
	if err != nil {
		t.Fatal(err)
	}
	if list.CNIVersion != "1.1.0" || len(list.Plugins) != 1 {
		t.Errorf("libcni makes version %s and %d plugins of it", list.CNIVersion, len(list.Plugins))
	}
	conf, err := libcni.InjectConf(list.Plugins[0], map[string]any{"name": list.Name, "cniVersion": list.CNIVersion})
	if err != nil {
		t.Fatal(err)
	}
	if _, e := netconf.Parse(conf.Bytes); e != nil {
		t.Error(e)
	}
}
