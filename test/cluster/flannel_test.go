package cluster

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-net/berth/test/programs"
)

// flannelImage is an image with flannel's programs and its CNI plugin.
const flannelImage = "localhost/flannel:test"

// referencePlugins are CNI's own, which flannel and kindnet have do the work. They are on a node before its network is.
var referencePlugins = []string{"bridge", "host-local", "loopback", "portmap", "ptp"}

// loadPlugins puts them on all nodes.
func (c *cluster) loadPlugins(t *testing.T) {
	t.Helper()
	peers := programs.Peers(t, referencePlugins...)
	for _, n := range c.nodes {
		for _, name := range referencePlugins {
			n.mustRun(found(t, "busybox"), "cp", filepath.Join(peers, name), "/opt/cni/bin/")
		}
	}
}

// systemFolders has iptables and what it loads. An image of the test has none of its own: its containers mount the machine's.
var systemFolders = []string{"/usr", "/lib", "/lib64"}

// mountSystem adds these folders to a manifest with one list of mounts and one of volumes that begin with "run".
func mountSystem(manifest string) string {
	mounts, volumes := "        volumeMounts:\n", "      volumes:\n"
	const firstMount, firstVolume = "        - name: run\n", "      - name: run\n"
	manifest = strings.Replace(manifest, mounts+firstMount, "MOUNTS"+firstMount, 1)
	manifest = strings.Replace(manifest, volumes+firstVolume, "VOLUMES"+firstVolume, 1)
	for _, folder := range systemFolders {
		if _, err := os.Stat(folder); err == nil {
			name := strings.TrimPrefix(folder, "/")
			mounts += "        - {name: " + name + ", mountPath: " + folder + ", readOnly: true}\n"
			volumes += "      - {name: " + name + ", hostPath: {path: " + folder + "}}\n"
		}
	}
	return strings.NewReplacer("MOUNTS", mounts, "VOLUMES", volumes).Replace(manifest)
}

// iptablesLinks are the commands' names in an image that has the machine's /usr.
func iptablesLinks() (files []programs.File) {
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"", "-save", "-restore"} {
			files = append(files, programs.File{Name: "bin/" + name + what, Mode: 0o777, Link: "/usr/sbin/" + name + "-nft" + what})
		}
	}
	return files
}

// startFlannel has flannel's own manifest give the cluster a network, for both families.
func (c *cluster) startFlannel(t *testing.T) {
	t.Helper()
	dir := programs.Flannel(t)
	read := func(name string) []byte {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		return raw
	}
	image := filepath.Join(t.TempDir(), "flannel.tar")
	must(t, programs.Image{Name: flannelImage, Path: "/bin:/usr/sbin:/usr/bin", Files: append(append(programs.Busybox(t, "cp"), iptablesLinks()...),
		programs.File{Name: "opt/bin/flanneld", Mode: 0o755, Content: read("flanneld")},
		programs.File{Name: "opt/bin/install-conf", Mode: 0o755, Content: read("install-conf")},
		programs.File{Name: "flannel", Mode: 0o755, Content: read("flannel")},
	)}.Write(image))
	for _, n := range c.nodes {
		n.load(image)
	}
	published := string(read("kube-flannel.yml"))
	manifest := regexp.MustCompile(`image: ghcr\.io/flannel-io/\S+`).ReplaceAllString(published, "image: "+flannelImage)
	cidr4, cidr6, _ := strings.Cut(podCIDRs, ",")
	manifest = strings.Replace(manifest, `"Network": "10.244.0.0/16",`, `"Network": "`+cidr4+`", "EnableIPv6": true, "IPv6Network": "`+cidr6+`",`, 1)
	c.apply(mountSystem(manifest))
	t.Cleanup(func() { // before the cluster ends
		if t.Failed() {
			said, err := c.kubectl("logs", "--namespace=kube-flannel", "-l", "app=flannel", "--all-containers", "--prefix", "--tail=30")
			t.Logf("what flannel says: %v\n%s", err, said)
		}
	})
	c.mustKubectl("rollout", "status", "--namespace=kube-flannel", "daemonset/kube-flannel-ds", "--timeout=90s")
	for _, n := range c.nodes {
		c.waitReady(n)
	}
}

// A cluster of real flannel is taken to Berth by the guide, node by node. It has VXLAN at first, and then host-gw, as the guide says.
func TestMigrateFromFlannel(t *testing.T) {
	c, helm := startEmpty(t, 3)
	g := openGuide(c, "-n kube-flannel daemonset/kube-flannel-ds", helm)
	g.takesOver(t, c.startFlannel, "kube-flannel-cfg", "flannel.1", `(?i)flannel|cni0`)
}
