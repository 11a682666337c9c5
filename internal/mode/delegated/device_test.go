package delegated

import (
	"encoding/json"
	"testing"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/delegate"
	"github.com/berth-net/berth/internal/kinds/deviceinfo"
	"github.com/berth-net/berth/internal/nettest"
)

// The device-info file of a network with a device is held before its plugins run, and those that want its path get it. The configuration of a
// network stays as it is: two attachments have two files.
func TestDevice(t *testing.T) {
	const declares, not = `{"type":"a","capabilities":{"CNIDeviceInfoFile":true}}`, `{"type":"b"}`
	m := New(Options{Run: "run", InfoFile: func(id hold.ID) string { return "/info/" + string(id) }})
	list := &netconf.List{Plugins: []json.RawMessage{json.RawMessage(declares), json.RawMessage(not)}, Device: "d", Resource: "v/r"}
	c := &netconf.Conf{Name: "n", List: list}
	for _, id := range []hold.ID{"one", "two"} {
		o, _, err := m.Plan(t.Context(), id, attachment.Record{}, c)
		nettest.Must(t, err)
		if len(o.Holds) != 2 {
			t.Fatalf("holds %v", o.Holds)
		}
		info, isInfo := o.Holds[0].Spec.(*deviceinfo.Spec)
		plugins, arePlugins := o.Holds[1].Spec.(*delegate.Spec)
		if !isInfo || !arePlugins || *info != (deviceinfo.Spec{ID: id, Resource: "v/r", Device: "d"}) {
			t.Fatalf("holds %v", o.Holds)
		}
		want := `{"type":"a","capabilities":{"CNIDeviceInfoFile":true},"runtimeConfig":{"CNIDeviceInfoFile":"/info/` + string(id) + `"}}`
		if plugins.Plugins[0] != want || plugins.Plugins[1] != not || plugins.ID != id {
			t.Errorf("the plugins get %s", plugins.Plugins)
		}
	}
	if string(list.Plugins[0]) != declares {
		t.Errorf("the configuration has become %s", list.Plugins[0])
	}
	list.Device = ""
	o, _, err := m.Plan(t.Context(), "one", attachment.Record{}, c)
	nettest.Must(t, err)
	if s, ok := o.Holds[0].Spec.(*delegate.Spec); len(o.Holds) != 1 || !ok || s.Plugins[0] != declares {
		t.Errorf("without a device: %v", o.Holds)
	}
	list.Device, list.Plugins = "d", []json.RawMessage{json.RawMessage(`{"capabilities":1}`)}
	if _, _, err := m.Plan(t.Context(), "one", attachment.Record{}, c); err == nil {
		t.Error("a configuration that cannot be read is planned")
	}
}
