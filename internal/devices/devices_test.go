package devices

import (
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/cni"
)

// Networks get the devices of their resources in order, and each device goes to one network.
func TestAssign(t *testing.T) {
	has := map[string][]string{"intel.com/a": {"a1", "a0"}, "intel.com/b": {"b0"}, "none": nil}
	for _, c := range []struct {
		what      string
		resources []string
		want      []string
		refused   string
	}{
		{"no network", nil, []string{}, ""},
		{"networks without devices", []string{"", ""}, []string{"", ""}, ""},
		{"one network of two devices", []string{"intel.com/a"}, []string{"a1"}, ""},
		{"several resources", []string{"intel.com/a", "", "intel.com/b", "intel.com/a"}, []string{"a1", "", "b0", "a0"}, ""},
		{"one too many", []string{"intel.com/a", "intel.com/b", "", "intel.com/b"}, nil, "network 4, ns/n, asks for device 2 of intel.com/b, and the pod has 1;"},
		{"a resource that is not there", []string{"x"}, nil, "network 1, ns/n, asks for device 1 of x, and the pod has 0;"},
		{"a resource without devices", []string{"none"}, nil, "device 1 of none, and the pod has 0;"},
	} {
		var networks []Ask
		for _, r := range c.resources {
			networks = append(networks, Ask{"ns/n", r})
		}
		got, e := Assign(networks, has)
		switch {
		case c.refused != "":
			if e == nil || e.Code != cni.CodeConfig || !strings.Contains(e.Details, c.refused) || got != nil {
				t.Errorf("%s: %q, %v; want %q", c.what, got, e, c.refused)
			}
		case e != nil || !slices.Equal(got, c.want):
			t.Errorf("%s: %q, %v; want %q", c.what, got, e, c.want)
		}
	}
	if !slices.Equal(has["intel.com/a"], []string{"a1", "a0"}) {
		t.Errorf("the pod's devices are %q now", has["intel.com/a"])
	}
	if _, e := Assign([]Ask{{strings.Repeat("n", 5000), strings.Repeat("r", 5000)}}, nil); e == nil || len(e.Details) > 1000 {
		t.Errorf("long names: %v", e)
	}
}
