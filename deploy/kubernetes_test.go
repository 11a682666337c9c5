package deploy

import (
	"errors"
	"io"
	"maps"
	"os"
	"reflect"
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

// taker is what the test wants to know of a pod that takes Berth from a node, and of a DaemonSet's pod.
type taker struct {
	HostPID        bool             `yaml:"hostPID"`
	InitContainers []map[string]any `yaml:"initContainers"`
	Containers     []map[string]any
	Volumes        []map[string]any
}

// takerOf returns the pod of a manifest.
func takerOf(t *testing.T, manifest string) taker {
	t.Helper()
	raw, err := os.ReadFile("kubernetes/" + manifest)
	nettest.Must(t, err)
	for dec := yaml.NewDecoder(strings.NewReader(string(raw))); ; {
		var o struct {
			Kind string
			Spec struct {
				taker    `yaml:",inline"`
				Template struct{ Spec taker }
			}
		}
		nettest.Must(t, dec.Decode(&o))
		switch o.Kind {
		case "Pod":
			return o.Spec.taker
		case "DaemonSet":
			return o.Spec.Template.Spec
		}
	}
}

// named returns what has a name in a list.
func named(t *testing.T, list []map[string]any, name string) map[string]any {
	t.Helper()
	for _, of := range list {
		if of["name"] == name {
			return of
		}
	}
	t.Fatalf("nothing has the name %s", name)
	return nil
}

// What takes Berth from a node is of the same image as what has put it there, and looks in the same folders. Where pods could have several
// networks, it has the same berth-runner, which ends with the rest, and sees the files of which the agent has to give back some.
func TestRemove(t *testing.T) {
	for manifest, puts := range map[string]taker{"remove.yaml": takerOf(t, "berth.yaml"), "remove-networks.yaml": takerOf(t, "networks.yaml")} {
		takes := takerOf(t, manifest)
		for _, c := range slices.Concat(takes.InitContainers, takes.Containers) {
			if c["image"] != puts.Containers[0]["image"] {
				t.Errorf("container %s of %s has the image %s", c["name"], manifest, c["image"])
			}
		}
		for _, v := range takes.Volumes {
			of := puts
			if v["name"] == "former" { // of which an agent has no need without networks
				of = takerOf(t, "networks.yaml")
			}
			if was := named(t, of.Volumes, v["name"].(string)); !reflect.DeepEqual(v, was) {
				t.Errorf("%s has %v, and not %v", manifest, v, was)
			}
		}
		for _, v := range takerOf(t, "berth.yaml").Volumes {
			if v["hostPath"] != nil {
				named(t, takes.Volumes, v["name"].(string))
			}
		}
	}
	puts, takes, plain := takerOf(t, "networks.yaml"), takerOf(t, "remove-networks.yaml"), takerOf(t, "remove.yaml")
	runner := named(t, takes.InitContainers, "berth-runner")
	if runner["restartPolicy"] != "Always" || !takes.HostPID || takes.InitContainers[0]["name"] != "berth-runner" {
		t.Errorf("berth-runner does not run beside the others: %v", runner)
	}
	delete(runner, "restartPolicy")
	if was := named(t, puts.Containers, "berth-runner"); !reflect.DeepEqual(runner, was) {
		t.Errorf("berth-runner is %v, and was %v", runner, was)
	}
	if !reflect.DeepEqual(takes.InitContainers[1:], plain.InitContainers) || plain.HostPID {
		t.Errorf("remove-networks.yaml has %v, and remove.yaml %v", takes.InitContainers, plain.InitContainers)
	}
	agent := named(t, puts.Containers, "berthd")["volumeMounts"].([]any)
	for _, file := range []string{"former", "device-info"} { // in which the holds of networks have files
		of := func(m any) bool { return m.(map[string]any)["name"] == file }
		mounts := takes.Containers[0]["volumeMounts"].([]any)
		i, was := slices.IndexFunc(mounts, of), slices.IndexFunc(agent, of)
		if i < 0 || !reflect.DeepEqual(mounts[i], agent[was]) {
			t.Errorf("remove-networks.yaml has the mounts %v, without the agent's %s", mounts, file)
		}
	}
}
