package devices

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berth-net/berth/api"
)

// Whatever the kubelet answers: if its own types can read it, the pod's devices are what they say.
func FuzzAnswer(f *testing.F) {
	pod := api.Pod{Namespace: "ns", Name: "p"}
	resources := &podresources.PodResources{Name: "p", Namespace: "ns", Containers: []*podresources.ContainerResources{
		{Name: "c", CpuIds: []int64{1, 300}, Devices: []*podresources.ContainerDevices{
			{ResourceName: "r", DeviceIds: []string{"b", "a", "b"}, Topology: &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: 1}}}},
		}},
		{DynamicResources: []*podresources.DynamicResource{{ClaimName: "r", ClaimNamespace: "ns", ClaimResources: []*podresources.ClaimResource{
			{CdiDevices: []*podresources.CDIDevice{{Name: "v/c=a"}, {Name: "v/c=z=1"}}, DriverName: "d", ShareId: new("s")},
		}}}},
	}}
	encode := func(m proto.Message) []byte {
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		return raw
	}
	one := encode(&podresources.GetPodResourcesResponse{PodResources: resources})
	several := encode(&podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{Name: "o", Namespace: "ns"}, resources, {}, resources}})
	// A message in two parts is one message.
	named := encode(&podresources.GetPodResourcesResponse{PodResources: &podresources.PodResources{Name: "p", Namespace: "ns"}})
	nameless := encode(&podresources.GetPodResourcesResponse{PodResources: &podresources.PodResources{Containers: resources.Containers}})
	for _, raw := range [][]byte{nil, one, slices.Concat(named, nameless), several, one[:len(one)-1], append(slices.Clone(one), several...), {0x0a}, {0x0b, 0x0c}, {0x08, 0x01}} {
		f.Add(raw, false)
		f.Add(raw, true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, list bool) {
		got, err := parse(raw, pod, list)
		var all []*podresources.PodResources
		if list {
			var answer podresources.ListPodResourcesResponse
			if proto.Unmarshal(raw, &answer) != nil {
				return
			}
			all = answer.PodResources
		} else {
			var answer podresources.GetPodResourcesResponse
			if proto.Unmarshal(raw, &answer) != nil {
				return
			}
			all = append(all, answer.PodResources)
		}
		want, known, sound := expected(all, pod)
		switch {
		case !known || !sound:
			if err == nil || !known && err != errUnknownPod {
				t.Errorf("%x: %v, %v; the pod is known: %t", raw, got, err, known)
			}
		case err != nil || !maps.EqualFunc(got, want, slices.Equal):
			t.Errorf("%x: %v, %v; want %v", raw, got, err, want)
		}
	})
}

// An answer stays what it is when the library uses its bytes for another one.
func TestCodecCopies(t *testing.T) {
	raw, answer := []byte("answer"), message(nil)
	if err := (codec{}).Unmarshal(raw, &answer); err != nil {
		t.Fatal(err)
	}
	copy(raw, "xxxxxx")
	if string(answer) != "answer" {
		t.Errorf("it is %q now", answer)
	}
}

// expected returns which devices a pod has, whether it is known, and whether each device has an ID.
func expected(all []*podresources.PodResources, pod api.Pod) (has map[string][]string, known, sound bool) {
	has, sound = map[string][]string{}, true
	add := func(resource, id string) {
		sound = sound && id != ""
		if !slices.Contains(has[resource], id) {
			has[resource] = append(has[resource], id)
		}
	}
	for _, p := range all {
		if p.GetName() != pod.Name || p.GetNamespace() != pod.Namespace {
			continue
		}
		known = true
		for _, c := range p.Containers {
			for _, d := range c.Devices {
				for _, id := range d.DeviceIds {
					add(d.ResourceName, id)
				}
			}
			for _, d := range c.DynamicResources {
				for _, r := range d.ClaimResources {
					for _, device := range r.CdiDevices {
						_, id, _ := strings.Cut(device.Name, "=")
						add(d.ClaimName, id)
					}
				}
			}
		}
	}
	return has, known, sound
}

// Whatever a device-info file has: what is accepted has a type, and can be shown in a pod's status.
func FuzzInfo(f *testing.F) {
	for _, s := range []string{
		"", "{}", "null", `{"type":"pci","pci":{}}`, `{"type":"vdpa","vdpa":{"driver":"vhost"}}`, `{"Type":"x","vhost-user":null}`, `{"type":"\ud800"}`, "[[[",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		info, err := parseInfo(raw)
		if err != nil {
			if info != nil || len(err.Error()) > 2000 {
				t.Errorf("%q: %v, and an error of %d bytes", raw, info, len(err.Error()))
			}
			return
		}
		if text, err := json.Marshal(info); err != nil || info.Type == "" {
			t.Errorf("%q: %s, %v", raw, text, err)
		}
	})
}
