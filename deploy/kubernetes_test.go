package deploy

import (
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// object is what the test wants to know of an object of a manifest.
type object struct {
	Kind  string
	Data  map[string]string
	Rules []struct {
		APIGroups        []string `yaml:"apiGroups"`
		Resources, Verbs []string
	}
	Spec struct {
		Template struct {
			Spec struct {
				HostNetwork bool `yaml:"hostNetwork"`
				Containers  []struct {
					Name, Image  string
					VolumeMounts []struct {
						Name      string
						MountPath string `yaml:"mountPath"`
					} `yaml:"volumeMounts"`
				}
				Volumes []struct {
					Name     string
					HostPath struct{ Path string } `yaml:"hostPath"`
				}
			}
		}
	}
}

// rights are all that an agent may do, by resource: it reads, says that its node has a network, makes Events, and writes what its node
// has of the cluster's pools.
var rights = map[string][]string{
	"nodes": {"list", "watch"}, "nodes/status": {"patch"}, "events": {"create", "patch"}, "pods": {"get", "list", "watch"}, "namespaces": {"get", "list", "watch"},
	"ippools": {"list", "watch"}, "nodenetworks": {"get", "list", "watch"}, "nodenetworks/status": {"patch"},
}

// networkRights are what an agent may do besides if pods may ask for further networks: it reads these, and writes which of them a pod has.
var networkRights = map[string][]string{"network-attachment-definitions": {"get", "list", "watch"}, "pods/status": {"patch"}}

// groups are the API groups of resources that are not Kubernetes' core.
var groups = map[string]string{
	"ippools": "berth.dev", "nodenetworks": "berth.dev", "nodenetworks/status": "berth.dev", "events": "events.k8s.io", "network-attachment-definitions": "k8s.cni.cncf.io",
}

// The manifests for a cluster give the agent no right but those, and a configuration that the agent reads. Each folder
// of the node is at the same path in the containers, because the record of what is installed has these paths.
func TestKubernetes(t *testing.T) {
	judge(t, "berth.yaml", rights, false)
	more := maps.Clone(rights)
	maps.Copy(more, networkRights)
	judge(t, "networks.yaml", more, true)
}

// judge looks at a manifest, which may give these rights to the agent, and lets pods ask for further networks or not.
func judge(t *testing.T, manifest string, rights map[string][]string, networks bool) {
	t.Helper()
	raw, err := os.ReadFile("kubernetes/" + manifest)
	nettest.Must(t, err)
	kinds := map[string]int{}
	for dec := yaml.NewDecoder(strings.NewReader(string(raw))); ; {
		var o object
		if err := dec.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		kinds[o.Kind]++
		for _, r := range o.Rules {
			for _, resource := range r.Resources {
				if !slices.Equal(r.APIGroups, []string{groups[resource]}) || !slices.Equal(r.Verbs, rights[resource]) {
					t.Errorf("by %s the agent may %v %v of %q", manifest, r.Verbs, resource, r.APIGroups)
				}
			}
		}
		if text, ok := o.Data["berthd.yaml"]; ok {
			t.Setenv(config.NodeVariable, "node-1")
			file := t.TempDir() + "/berthd.yaml"
			nettest.Must(t, os.WriteFile(file, []byte(text), 0o644))
			c, err := config.Load(root.Dir(t.TempDir()), config.Flags{File: file})
			nettest.Must(t, err)
			if c.Kubernetes == nil || c.Kubernetes.Node != "node-1" || c.Kubernetes.Networks != networks {
				t.Errorf("the configuration is %+v", c.Kubernetes)
			}
		}
		pod := o.Spec.Template.Spec
		for _, c := range pod.Containers {
			if c.Image != pod.Containers[0].Image || !pod.HostNetwork {
				t.Errorf("container %s has the image %s, and the node's network: %t", c.Name, c.Image, pod.HostNetwork)
			}
			for _, m := range c.VolumeMounts {
				for _, v := range pod.Volumes {
					if v.Name == m.Name && v.HostPath.Path != "" && v.HostPath.Path != m.MountPath {
						t.Errorf("the node's %s is %s in container %s", v.HostPath.Path, m.MountPath, c.Name)
					}
				}
			}
		}
	}
	if kinds["DaemonSet"] != 1 || kinds["ClusterRole"] != 1 || kinds["ConfigMap"] != 1 {
		t.Errorf("%s has %v", manifest, kinds)
	}
}

// What takes Berth from a node is of the same image as what has put it there, and looks in the same folders.
func TestRemove(t *testing.T) {
	lines := func(file, of string) (all []string) {
		raw, err := os.ReadFile(file)
		nettest.Must(t, err)
		for line := range strings.Lines(string(raw)) {
			if line = strings.TrimSpace(line); strings.Contains(line, of) && !strings.HasPrefix(line, "#") {
				all = append(all, line)
			}
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	for _, of := range []string{"image: ", "hostPath: "} {
		if puts, takes := lines("kubernetes/berth.yaml", of), lines("kubernetes/remove.yaml", of); len(puts) == 0 || !slices.Equal(puts, takes) {
			t.Errorf("berth.yaml has %q, and remove.yaml %q", puts, takes)
		}
	}
}
