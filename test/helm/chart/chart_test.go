package chart

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

var must = nettest.Must

const dir = "../../../deploy/helm/berth"

// values reads values as `helm --values` does.
func values(t *testing.T, text string) (v map[string]any) {
	t.Helper()
	must(t, yaml.Unmarshal([]byte(text), &v))
	return v
}

// object returns an empty object of a kind, for strict decoding.
func object(kind string) (any, error) {
	switch kind {
	case "ServiceAccount":
		return &corev1.ServiceAccount{}, nil
	case "ConfigMap":
		return &corev1.ConfigMap{}, nil
	case "ClusterRole":
		return &rbacv1.ClusterRole{}, nil
	case "ClusterRoleBinding":
		return &rbacv1.ClusterRoleBinding{}, nil
	case "CustomResourceDefinition":
		return &apiextensionsv1.CustomResourceDefinition{}, nil
	case "Deployment":
		return &appsv1.Deployment{}, nil
	case "PodDisruptionBudget":
		return &policyv1.PodDisruptionBudget{}, nil
	case "Role":
		return &rbacv1.Role{}, nil
	case "RoleBinding":
		return &rbacv1.RoleBinding{}, nil
	case "DaemonSet":
		return &appsv1.DaemonSet{}, nil
	case "ValidatingAdmissionPolicy":
		return &admissionv1.ValidatingAdmissionPolicy{}, nil
	case "ValidatingAdmissionPolicyBinding":
		return &admissionv1.ValidatingAdmissionPolicyBinding{}, nil
	}
	return nil, errors.New("the test does not know objects of the kind " + kind)
}

// objects renders the chart, and decodes its objects: an unknown or doubled field is an error.
func objects(t *testing.T, text string) (all []any) {
	t.Helper()
	r, err := Render(dir, "kube-system", values(t, text))
	must(t, err)
	for _, doc := range strings.Split("\n"+r.Manifest, "\n---\n") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		var of struct{ Kind string }
		must(t, yaml.Unmarshal([]byte(doc), &of))
		o, err := object(of.Kind)
		must(t, err)
		if err := yaml.UnmarshalStrict([]byte(doc), o); err != nil {
			t.Errorf("%s: %v\n%s", of.Kind, err, doc)
		}
		all = append(all, o)
	}
	return all
}

// one returns the object of a type.
func one[T any](t *testing.T, all []any) *T {
	t.Helper()
	for _, o := range all {
		if o, ok := o.(*T); ok {
			return o
		}
	}
	t.Fatalf("the chart has no %s", reflect.TypeFor[T]())
	return nil
}

// berthd reads the configuration of a rendered chart as an agent of it does.
func berthd(t *testing.T, all []any) *config.Config {
	t.Helper()
	t.Setenv(config.NodeVariable, "node-1")
	file := filepath.Join(t.TempDir(), "berthd.yaml")
	must(t, os.WriteFile(file, []byte(one[corev1.ConfigMap](t, all).Data["berthd.yaml"]), 0o644))
	c, err := config.Load(root.Dir(t.TempDir()), config.Flags{File: file})
	must(t, err)
	if c.Kubernetes == nil || c.Kubernetes.Node != "node-1" {
		t.Errorf("the configuration is %+v", c.Kubernetes)
	}
	return c
}

// The plain manifests are the chart with its default values, with pools, and with networks.
func TestPlain(t *testing.T) {
	for _, m := range Manifests {
		text, err := m.Text(dir)
		must(t, err)
		have, err := os.ReadFile("../../../deploy/kubernetes/" + m.File)
		must(t, err)
		if string(have) != text {
			t.Errorf("deploy/kubernetes/%s is not what the chart says: `make manifests` writes it", m.File)
		}
	}
	crds, err := filepath.Glob(dir + "/files/crds/*.yaml")
	must(t, err)
	for _, file := range crds {
		mine, err := os.ReadFile(file)
		must(t, err)
		generated, err := os.ReadFile("../../../deploy/kubernetes/crds/" + filepath.Base(file))
		must(t, err)
		if string(mine) != string(generated) {
			t.Errorf("%s is not what `make generate` made: `make manifests` copies it", file)
		}
	}
	if len(crds) != 2 {
		t.Errorf("the chart has the definitions %q", crds)
	}
	r, err := Render(dir, "kube-system", nil)
	must(t, err)
	if !strings.Contains(r.Notes, "rollout status daemonset/berth") {
		t.Errorf("the notes do not say how to see that Berth runs:\n%s", r.Notes)
	}
}

// Helm's linter has nothing to say, also of every value at once.
func TestLint(t *testing.T) {
	for _, text := range []string{"", every} {
		for _, m := range lint.RunAll(dir, values(t, text), "kube-system").Messages {
			if m.Severity > support.InfoSev {
				t.Error(m)
			}
		}
	}
}

// every is a value for each that the chart has, other than its default.
const every = `
image: {repository: registry.example:5000/berth, tag: v9, digest: "", pullPolicy: Always, pullSecrets: [a, b]}
config:
  pools: [{name: extra, cidrs: [10.99.0.0/16, "fd00:99::/64"], cooldown: 2m}, {name: lan, cidrs: [192.0.2.64/26], segment: {subnets: [192.0.2.0/24], gateways: [192.0.2.1]}}]
  cooldown: 90s
  mtu: 1400
  masquerade: {enabled: true, excludedCIDRs: [172.16.0.0/12], ports: 2000-60000}
  blockedCIDRs: [169.254.0.0/16]
  connections: 29000
  forwarding: true
  fullNotReady: true
  history: {records: 100000, age: 1h30m}
  kubernetes: {health: {enabled: false, interval: 1m, port: 9000}, routing: vxlan, vxlan: {vni: 16777215, port: 8472}, wireguard: {port: 51821}}
  concurrency: 32
  sweepInterval: 10s
  metrics: "127.0.0.1:9477"
  tracing: {endpoint: "http://127.0.0.1:4318", sampling: 0.5}
  logLevel: debug
pools: {enabled: true, operator: {replicas: 3, metrics: ":9999", nodes: "kubernetes.io/os=linux,a!=b", resources: {limits: {memory: 1Gi}}}}
networks: {enabled: true, crd: false, binDirs: [/opt/cni/bin, /usr/lib/cni], processes: 6, resources: {limits: {memory: 3Gi}}}
clusterAudit: {enabled: true}
apiServer: {host: "2001:db8::1", port: 6444}
ipMasqAgent: {configMap: masq}
cni: {binDir: /usr/lib/cni, confDir: /etc/other/net.d}
agent:
  nodeSelector: {kubernetes.io/os: linux, berth.dev/network: berth}
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}
  tolerations: [{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoSchedule}]
  priorityClassName: other
  maxUnavailable: 10%
  hostPID: true
  goMemLimit: 1GiB
  resources: {requests: {cpu: 1}, limits: {memory: 4Gi}}
  install: {resources: {limits: {memory: 64Mi}}}
  labels: {of: us}
  annotations: {by: us}
`

// Each value has its effect, and the agents can read what they are given.
func TestValues(t *testing.T) {
	all := objects(t, every)
	c := berthd(t, all)
	vxlan := config.VXLAN{VNI: 16777215, Port: 8472}
	if c.Kubernetes.Routing != "vxlan" || c.Kubernetes.VXLAN != vxlan || c.Kubernetes.WireGuard.Port != 51821 || len(c.Pools) != 2 || c.Pools[1].Segment == nil || c.History.Records != 100_000 {
		t.Errorf("the agents' configuration is %+v", c)
	}
	d := one[appsv1.DaemonSet](t, all)
	pod := d.Spec.Template.Spec
	agent, install, runner := pod.Containers[0], pod.Containers[1], pod.Containers[2]
	for what, is := range map[string]bool{
		"image":             agent.Image == "registry.example:5000/berth:v9" && install.Image == agent.Image,
		"pull policy":       agent.ImagePullPolicy == "Always" && install.ImagePullPolicy == "Always",
		"pull secrets":      len(pod.ImagePullSecrets) == 2 && pod.ImagePullSecrets[1].Name == "b",
		"API server":        env(agent, "KUBERNETES_SERVICE_HOST") == "2001:db8::1" && env(agent, "KUBERNETES_SERVICE_PORT") == "6444",
		"memory limit":      env(agent, "GOMEMLIMIT") == "1GiB",
		"CNI's folders":     slices.Contains(install.Command, "--bin-dir=/usr/lib/cni") && slices.Contains(install.Command, "--conf-dir=/etc/other/net.d"),
		"node selector":     pod.NodeSelector["berth.dev/network"] == "berth",
		"affinity":          pod.Affinity != nil && pod.Affinity.NodeAffinity != nil,
		"tolerations":       len(pod.Tolerations) == 1 && pod.Tolerations[0].Effect == "NoSchedule",
		"priority":          pod.PriorityClassName == "other",
		"update":            d.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.String() == "10%",
		"host's processes":  pod.HostPID && slices.Contains(agent.SecurityContext.Capabilities.Add, "SYS_PTRACE"),
		"resources":         agent.Resources.Requests.Cpu().String() == "1" && agent.Resources.Limits.Memory().String() == "4Gi",
		"install resources": install.Resources.Limits.Memory().String() == "64Mi",
		"label":             d.Spec.Template.Labels["of"] == "us" && d.Spec.Template.Labels["app.kubernetes.io/name"] == "berth",
		"runner":            runner.Image == agent.Image && runner.ImagePullPolicy == "Always",
		"plugins":           slices.Equal(runner.Command, []string{"berth-runner", "--host", "--bin-dir=/opt/cni/bin", "--bin-dir=/usr/lib/cni", "--processes=6"}),
		"runner resources":  runner.Resources.Limits.Memory().String() == "3Gi",
		"annotation":        d.Spec.Template.Annotations["by"] == "us",
	} {
		if !is {
			t.Errorf("%s: the DaemonSet is %+v", what, d.Spec)
		}
	}
	if !c.Kubernetes.Networks || !c.Kubernetes.FromPools() || c.Kubernetes.Health.Enabled || c.Kubernetes.Health.Port != 9000 {
		t.Errorf("the agents' configuration is %+v", c.Kubernetes)
	}
	file := c.Masquerade.IPMasqAgentFile
	mounted := slices.ContainsFunc(agent.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "ip-masq-agent" && m.MountPath == filepath.Dir(file) })
	from := slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool {
		return v.Name == "ip-masq-agent" && v.ConfigMap.Name == "masq" && *v.ConfigMap.Optional
	})
	if filepath.Base(file) != "config" || !mounted || !from || c.Masquerade.Ports != (config.Ports{First: 2000, Last: 60000}) {
		t.Errorf("the agents read ip-masq-agent's ConfigMap as %s (mounted %t, of the ConfigMap %t), and masquerade as %+v", file, mounted, from, c.Masquerade)
	}
	o := one[appsv1.Deployment](t, all)
	operator := o.Spec.Template.Spec.Containers[0]
	for what, is := range map[string]bool{
		"replicas":     *o.Spec.Replicas == 3,
		"image":        operator.Image == agent.Image && operator.ImagePullPolicy == "Always",
		"pull secrets": len(o.Spec.Template.Spec.ImagePullSecrets) == 2,
		"API server":   env(operator, "KUBERNETES_SERVICE_HOST") == "2001:db8::1" && env(operator, "KUBERNETES_SERVICE_PORT") == "6444",
		"metrics":      slices.Contains(operator.Command, "--metrics=:9999"),
		"nodes":        slices.Contains(operator.Command, "--nodes=kubernetes.io/os=linux,a!=b"),
		"resources":    operator.Resources.Limits.Memory().String() == "1Gi",
	} {
		if !is {
			t.Errorf("%s: the operator's Deployment is %+v", what, o.Spec)
		}
	}
	digest := "sha256:" + strings.Repeat("0a", 32)
	pod = one[appsv1.DaemonSet](t, objects(t, "image: {tag: v9, digest: "+digest+"}")).Spec.Template.Spec
	if image := pod.Containers[1].Image; image != "ghcr.io/berth-net/berth@"+digest {
		t.Errorf("by its digest, the image is %s", image)
	}
	berthd(t, objects(t, "config: {kubernetes: null}")) // the agents belong to the cluster all the same
}

func env(c corev1.Container, name string) string {
	for _, v := range c.Env {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

// By default no container is privileged, and each drops all capabilities but those that it says why it needs. Another configuration
// replaces the agents, and nothing else does.
func TestDefaults(t *testing.T) {
	pod := one[appsv1.DaemonSet](t, objects(t, "")).Spec.Template.Spec
	want := map[string][]corev1.Capability{"berthd": {"NET_ADMIN", "SYS_ADMIN", "DAC_READ_SEARCH"}, "install": {"DAC_OVERRIDE"}}
	confined(t, pod, want)
	if pod.HostPID || pod.HostIPC || pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the pods are %+v", pod)
	}
	hash := func(text string) string {
		return one[appsv1.DaemonSet](t, objects(t, text)).Spec.Template.Annotations["berth.dev/config"]
	}
	if hash("") == hash("config: {mtu: 1400}") || hash("") != hash("agent: {maxUnavailable: 2}") {
		t.Error("the annotation does not follow the configuration")
	}
}

// Without pools there is no definition and no operator, and the agents have no right that they do not use. With pools, the release
// leaves the definitions when it goes, because all pools would go with them.
func TestPools(t *testing.T) {
	for _, o := range objects(t, "") {
		switch o := o.(type) {
		case *apiextensionsv1.CustomResourceDefinition, *appsv1.Deployment:
			t.Errorf("there are no pools, and the chart has %T", o)
		case *rbacv1.ClusterRole:
			if len(o.Rules) != 3 {
				t.Errorf("without pools, the agents may do this: %+v", o.Rules)
			}
		}
	}
	crds := 0
	for _, o := range objects(t, "pools: {enabled: true}") {
		if crd, is := o.(*apiextensionsv1.CustomResourceDefinition); is {
			crds++
			if crd.Annotations["helm.sh/resource-policy"] != "keep" || len(crd.Spec.Versions) == 0 {
				t.Errorf("%s: %v", crd.Name, crd.Annotations)
			}
		}
	}
	if crds != 2 {
		t.Errorf("the chart has %d definitions", crds)
	}
}

// confined checks that the containers of a pod have these capabilities and nothing else that others lack.
func confined(t *testing.T, pod corev1.PodSpec, want map[string][]corev1.Capability) {
	t.Helper()
	for _, c := range pod.Containers {
		s := c.SecurityContext
		drops := slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"})
		if s.Privileged != nil || !*s.ReadOnlyRootFilesystem || !drops || !slices.Equal(s.Capabilities.Add, want[c.Name]) {
			t.Errorf("container %s may do this: %+v", c.Name, s)
		}
	}
	if len(pod.Containers) != len(want) {
		t.Errorf("the pod has %d containers, and should have %d", len(pod.Containers), len(want))
	}
}

// For audits of the cluster the agents may list pods, and no more. With pools they may anyway.
func TestClusterAudit(t *testing.T) {
	pods := func(text string) (verbs []string) {
		for _, r := range one[rbacv1.ClusterRole](t, objects(t, text)).Rules {
			if slices.Contains(r.Resources, "pods") {
				verbs = append(verbs, r.Verbs...)
			}
		}
		return verbs
	}
	for text, want := range map[string][]string{
		"": nil, "clusterAudit: {enabled: true}": {"list"},
		"{clusterAudit: {enabled: true}, pools: {enabled: true}}": {"get", "list", "watch"},
	} {
		if have := pods(text); !slices.Equal(have, want) {
			t.Errorf("with %q the agents may do this with pods: %v, want %v", text, have, want)
		}
	}
}

// The schema refuses nonsense, and says what and where it is.
func TestSchema(t *testing.T) {
	for text, says := range map[string]string{
		"agnet: {}":                                    "additional properties 'agnet' not allowed",
		"agent: {hostPid: true}":                       "additional properties 'hostPid' not allowed",
		"agent: {maxUnavailable: 0}":                   "'/agent/maxUnavailable'",
		"agent: {maxUnavailable: many}":                "'/agent/maxUnavailable'",
		"agent: {tolerations: []}":                     "'/agent/tolerations'",
		"agent: {priorityClassName: null}":             "missing property 'priorityClassName'",
		"agent: {resources: {request: {cpu: 1}}}":      "additional properties 'request' not allowed",
		"agent: {goMemLimit: 256M}":                    "'/agent/goMemLimit'",
		"image: {repository: 'a b'}":                   "'/image/repository'",
		"image: {pullPolicy: Sometimes}":               "'/image/pullPolicy'",
		"image: {digest: latest}":                      "'/image/digest'",
		"cni: {binDir: opt/cni/bin}":                   "'/cni/binDir'",
		"apiServer: {host: 'https://api'}":             "'/apiServer/host'",
		"apiServer: {port: 0}":                         "'/apiServer/port'",
		"config: {kubernetes: {routing: bgp}}":         "value must be one of 'auto', 'native', 'vxlan', 'wireguard'",
		"config: {kubernetes: {wireguard: {port: 0}}}": "'/config/kubernetes/wireguard/port'",
		"config: {kubernetes: {node: n1}}":             "'/config/kubernetes/node'",
		"config: {kubernetes: {vxlan: {vni: 0}}}":      "'/config/kubernetes/vxlan/vni'",
		"config: {pools: [{name: node, cidrs: []}]}":   "'/config/pools/0",
		"config: {mtu: big}":                           "got string, want integer",
		"config: {cooldown: 65}":                       "'/config/cooldown'",
		"config: {masquerade: {exclude: []}}":          "additional properties 'exclude' not allowed",
		"config: {logLevel: chatty}":                   "'/config/logLevel'",
		"config: {kubernetes: {addresses: pools}}":     "'/config/kubernetes/addresses'",
		"ipMasqAgent: {configMap: 'a b'}":              "'/ipMasqAgent/configMap'",
		"config: {masquerade: {ipMasqAgentFile: /x}}":  "'/config/masquerade/ipMasqAgentFile'",
		"pools: {enabled: yes please}":                 "'/pools/enabled'",
		"config: {kubernetes: {networks: true}}":       "'/config/kubernetes/networks'",
		"networks: {binDirs: []}":                      "'/networks/binDirs'",
		"networks: {binDirs: [opt/cni/bin]}":           "'/networks/binDirs/0'",
		"networks: {processes: 1}":                     "'/networks/processes'",
		"networks: {crd: keep}":                        "'/networks/crd'",
		"clusterAudit: {enabled: 1}":                   "'/clusterAudit/enabled'",
		"pools: {operator: {metrics: here}}":           "'/pools/operator/metrics'",
		"pools: {operator: {replicas: 0}}":             "'/pools/operator/replicas'",
	} {
		if _, err := Render(dir, "kube-system", values(t, text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want %s", text, err, says)
		}
	}
}

// schema is a schema of JSON, as far as the test reads it.
type schema struct {
	Properties           map[string]*schema
	Items                *schema
	AdditionalProperties any
	Ref                  string `json:"$ref"`
	Definitions          map[string]*schema
}

// The schema has exactly the values of values.yaml and, in config, the keys of berthd.yaml. TestValues gives each a value.
func TestSchemaIsWhole(t *testing.T) {
	raw, err := os.ReadFile(dir + "/values.schema.json")
	must(t, err)
	var s schema
	must(t, json.Unmarshal(raw, &s))
	raw, err = os.ReadFile(dir + "/values.yaml")
	must(t, err)
	own, tried := values(t, string(raw)), values(t, every)
	delete(s.Properties, "global") // which Helm adds
	if want, have := slices.Sorted(maps.Keys(own)), slices.Sorted(maps.Keys(s.Properties)); !slices.Equal(have, want) {
		t.Errorf("the schema has the values %q, and the chart %q", have, want)
	}
	for name, of := range s.Properties {
		keys := slices.Sorted(maps.Keys(of.Properties))
		if of.AdditionalProperties != false {
			t.Errorf("the schema takes anything in %s", name)
		}
		if want := slices.Sorted(maps.Keys(own[name].(map[string]any))); name != "config" && !slices.Equal(keys, want) {
			t.Errorf("the schema has %q in %s, and the chart %q", keys, name, want)
		}
		if want := slices.Sorted(maps.Keys(tried[name].(map[string]any))); !slices.Equal(keys, want) {
			t.Errorf("the schema has %q in %s, and the test tries %q", keys, name, want)
		}
	}
	known := slices.Collect(maps.Keys(s.Properties["config"].Properties))
	for _, key := range reflect.VisibleFields(reflect.TypeFor[config.Config]()) {
		if !slices.ContainsFunc(known, func(name string) bool { return strings.EqualFold(name, key.Name) }) {
			t.Errorf("berthd.yaml has %s, and the schema of config has not", key.Name)
		}
	}
}
