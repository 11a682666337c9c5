package deploy

import (
	"reflect"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/root"
)

// berthd.yaml names every key with its right default.
func TestConfig(t *testing.T) {
	dir := root.Dir(t.TempDir()) // has no configuration file
	shown, err := config.Load(dir, config.Flags{File: "berthd.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	bare, err := config.Load(dir, config.Flags{Pools: []string{"default=10.88.0.0/16,fd00:88::/64"}})
	if err != nil {
		t.Fatal(err)
	}
	shown.Masquerade.ExcludedCIDRs = nil // an empty list means the same as none
	if !reflect.DeepEqual(shown, bare) {
		t.Errorf("berthd.yaml says %+v, and the defaults are %+v", shown, bare)
	}
}

// libcni can read the list, and the plugin can read what libcni makes of it.
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
