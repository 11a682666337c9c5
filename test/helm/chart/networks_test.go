package chart

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// networked are the values of a chart whose pods may ask for further networks.
const networked = "networks: {enabled: true}"

// The runner is a container apart, which is not privileged and is the only one that has more rights: the agent has none but those that
// it always has. Nothing of the chart speaks of networks while they are off.
func TestRunner(t *testing.T) {
	all := objects(t, networked)
	if c := berthd(t, all); !c.Kubernetes.Networks {
		t.Errorf("the agents' configuration is %+v", c.Kubernetes)
	}
	pod := one[appsv1.DaemonSet](t, all).Spec.Template.Spec
	confined(t, pod, map[string][]corev1.Capability{
		"berthd": {"NET_ADMIN", "SYS_ADMIN", "DAC_READ_SEARCH"}, "install": {"DAC_OVERRIDE"},
		"berth-runner": {
			"SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE", "NET_ADMIN", "NET_RAW", "NET_BIND_SERVICE", "SYS_MODULE", "DAC_OVERRIDE", "DAC_READ_SEARCH", "CHOWN",
			"FOWNER", "FSETID", "MKNOD", "SETUID", "SETGID", "SETPCAP", "KILL", "IPC_LOCK", "SYS_RESOURCE", "SYS_NICE",
		},
	})
	runner := pod.Containers[2]
	for what, is := range map[string]bool{
		"the node's processes and network": pod.HostPID && pod.HostNetwork,
		"command":                          slices.Equal(runner.Command, []string{"berth-runner", "--host", "--bin-dir=/opt/cni/bin"}),
		"no filter":                        runner.SecurityContext.SeccompProfile.Type == corev1.SeccompProfileTypeUnconfined,
		"the others' filter":               pod.SecurityContext.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault && pod.Containers[0].SecurityContext.SeccompProfile == nil,
		"programs of the node":             strings.Contains(env(runner, "PATH"), "/usr/sbin:/usr/bin"),
		"the agent's folder":               len(runner.VolumeMounts) == 1 && reflect.DeepEqual(runner.VolumeMounts[0], pod.Containers[0].VolumeMounts[0]),
		"mounts that come and go":          *runner.VolumeMounts[0].MountPropagation == corev1.MountPropagationHostToContainer,
		"device-info files": slices.ContainsFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.MountPath == "/var/run/k8s.cni.cncf.io/devinfo" && !m.ReadOnly && slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool {
				return v.Name == m.Name && v.HostPath != nil && v.HostPath.Path == m.MountPath && *v.HostPath.Type == corev1.HostPathDirectoryOrCreate
			})
		}),
		"time to end": *pod.TerminationGracePeriodSeconds >= 20,
	} {
		if !is {
			t.Errorf("%s: the pods are %+v", what, pod)
		}
	}
	bare, err := Render(dir, "kube-system", nil)
	must(t, err)
	for _, word := range []string{"runner", "network-", "hostPID: ", "networks", "pods/status"} {
		if strings.Contains(bare.Manifest, word) {
			t.Errorf("without networks the chart says %q", word)
		}
	}
}

// The definition is the standard's, and outlives the release. A cluster that has it keeps its own.
func TestNetworkAttachmentDefinition(t *testing.T) {
	crd := one[apiextensionsv1.CustomResourceDefinition](t, objects(t, networked))
	n, v := crd.Spec.Names, crd.Spec.Versions
	if crd.Name != n.Plural+"."+crd.Spec.Group || crd.Spec.Group != "k8s.cni.cncf.io" || n.Plural != "network-attachment-definitions" || n.Kind != "NetworkAttachmentDefinition" ||
		!slices.Equal(n.ShortNames, []string{"net-attach-def"}) || crd.Spec.Scope != apiextensionsv1.NamespaceScoped || crd.Annotations["helm.sh/resource-policy"] != "keep" {
		t.Errorf("the definition is %+v", crd)
	}
	if len(v) != 1 || v[0].Name != "v1" || !v[0].Served || !v[0].Storage || v[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["config"].Type != "string" {
		t.Errorf("its versions are %+v", v)
	}
	for _, o := range objects(t, "networks: {enabled: true, crd: false}") {
		if _, is := o.(*apiextensionsv1.CustomResourceDefinition); is {
			t.Error("networks.crd: false brings the definition")
		}
	}
}

// Networks give the agents the rights that they need, whatever else the agents may do, and no right twice.
func TestRightsOfNetworks(t *testing.T) {
	rights := func(text string) map[string]string {
		all := map[string]string{}
		for _, r := range one[rbacv1.ClusterRole](t, objects(t, text)).Rules {
			for _, resource := range r.Resources {
				if all[resource] != "" {
					t.Errorf("with %q the agents have rights to %s twice", text, resource)
				}
				all[resource] = strings.Join(r.Verbs, " ")
			}
		}
		return all
	}
	for _, more := range []string{"", "clusterAudit: {enabled: true}", "pools: {enabled: true}"} {
		want := rights(more)
		maps.Copy(want, map[string]string{"pods": "get list watch", "pods/status": "patch", "network-attachment-definitions": "get list watch"})
		if have := rights(networked + "\n" + more); !maps.Equal(have, want) {
			t.Errorf("with %q and networks the agents may do this: %v, want %v", more, have, want)
		}
	}
}
