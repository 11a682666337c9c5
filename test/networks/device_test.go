package networks

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/berth-net/berth/internal/devices"
	"github.com/berth-net/berth/internal/devices/devicestest"
	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nad"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// informed is a plugin that notes what its device-info file says. Its ADD writes the file if how says so, and its DEL fails while how says so.
const informed = `#!/bin/sh
conf=$(cat)
file=$(printf %%s "$conf" | sed -n 's/.*"CNIDeviceInfoFile":"\([^"]*\)".*/\1/p')
printf '%%s %%s %%s\n' "$CNI_COMMAND" "$CNI_IFNAME" "${file:+$(cat "$file" 2>&1)}" >>%[1]s/informed
case $CNI_COMMAND-$(cat %[1]s/how.$CNI_COMMAND 2>/dev/null) in
ADD-*) if test -e %[1]s/how.ADD; then mkdir -p "$(dirname "$file")" && cat %[1]s/how.ADD >"$file.x" && mv "$file.x" "$file"; fi
	echo '{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.2/24"}]}' ;;
DEL-fail) echo '{"cniVersion":"1.0.0","code":123,"msg":"told to fail"}'; exit 1 ;;
esac
`

// withDevices is a node of a cluster with the plugin informed, whose pod web has two devices of v/r. Definition dev is of that plugin, and plain is
// of a plugin that wants no device-info file; both need a device. base is the folder of device-info files.
func withDevices(t *testing.T) (b *both, base string) {
	b = newEquipped(t)
	must(t, os.WriteFile(filepath.Join(b.plugins, "informed"), fmt.Appendf(nil, informed, b.disk), 0o700))
	for name, declares := range map[string]bool{"dev": true, "plain": false} {
		b.api.Put("network-attachment-definitions", kubetest.Object{
			"metadata": kubetest.Object{"namespace": "default", "name": name, "annotations": kubetest.Object{nad.KeyResource: "v/r"}},
			"spec":     kubetest.Object{"config": fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"type":"informed","capabilities":{"CNIDeviceInfoFile":%t}}`, name, declares)},
		})
	}
	devicestest.Serve(t, devices.Socket(root.Dir(b.Root))).Put("default", "web", devicestest.Container("main", "v/r", "d1", "d2"))
	return b, filepath.Join(b.Root, "var/run/k8s.cni.cncf.io/devinfo")
}

// infos are the types of devices that the pod's status names, a word for each network.
func (b *both) infos() string {
	var all []nadv1.NetworkStatus
	_ = json.Unmarshal([]byte(b.status("default", "web")), &all)
	var words []string
	for _, s := range all {
		word := "none"
		if s.DeviceInfo != nil {
			word = s.DeviceInfo.Type
			if s.DeviceInfo.Pci != nil {
				word += "=" + s.DeviceInfo.Pci.PciAddress
			}
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// ran takes what informed has noted.
func (b *both) ran() string {
	raw, err := os.ReadFile(filepath.Join(b.disk, "informed"))
	must(b.t, err, os.Remove(filepath.Join(b.disk, "informed")))
	return string(raw)
}

// What a device plugin tells of a device reaches the network's plugins and the pod's status, whether the plugins want the file or not. The file is
// there until DEL has succeeded, over a crash of the agent, and no longer.
func TestDeviceInfo(t *testing.T) {
	b, base := withDevices(t)
	must(t, os.MkdirAll(filepath.Join(base, "dp"), 0o755))
	for _, d := range []string{"d1", "d2"} {
		must(t, os.WriteFile(filepath.Join(base, "dp/v-r-"+d+"-device.json"), fmt.Appendf(nil, `{"type":"pci","version":"1.1.0","pci":{"pci-address":%q}}`, d), 0o644))
	}
	left := func() int {
		all, err := os.ReadDir(filepath.Join(base, "cni"))
		must(t, err)
		return len(all)
	}
	at := nettest.Pod(t)
	r := b.asks("web", "dev,plain", at)
	result, err := b.exec(r)
	must(t, err)
	nettest.Eventually(t, "the status to name both devices", func() bool { return b.infos() == "none pci=d1 pci=d2" })
	if got := b.ran(); got != `ADD net1 {"type":"pci","version":"1.1.0","pci":{"pci-address":"d1"}}`+"\nADD net2 \n" {
		t.Errorf("the plugins read\n%s", got)
	}
	if again, err := b.exec(r); err != nil || string(again) != string(result) {
		t.Errorf("a repeated ADD: %s, %v", again, err)
	}
	b.Crash()
	b.Again()
	b.Audit(t)
	b.tell("DEL", "fail")
	r.verb = "DEL"
	_, err = b.exec(r)
	must(t, err)
	nettest.Eventually(t, "DEL of both to have failed", func() bool {
		out, err := b.Berth(t.Context(), "owed")
		must(t, err)
		return strings.Count(out, "told to fail") >= 2
	})
	if got := b.ran(); !strings.Contains(got, `DEL net1 {"type":"pci"`) || left() != 2 {
		t.Errorf("while DEL fails there are %d files, and the plugins read\n%s", left(), got)
	}
	b.tell("DEL", "")
	_, err = b.Berth(t.Context(), "owed", "retry")
	must(t, err)
	nettest.Eventually(t, "the files to be gone", func() bool { return left() == 0 })
	b.ran()
	b.nothingLeft()
}

// A device plugin that tells nothing leaves the file to the network's plugins. What a plugin writes that is none, or too much, keeps nobody from the pod.
func TestDeviceInfoOfPlugin(t *testing.T) {
	b, base := withDevices(t)
	for how, want := range map[string]string{
		"": "none none", "nonsense": "none none", `{"type":"memif","version":"1.1.0","memif":{"role":"slave","path":"/x","mode":"ip"}}`: "none memif",
		`{"type":"` + strings.Repeat("x", 17<<10) + `"}`: "none none",
	} {
		if how != "" {
			b.tell("ADD", how)
		}
		at := nettest.Pod(t)
		r := b.asks("web", "dev", at)
		_, err := b.exec(r)
		must(t, err)
		nettest.Eventually(t, fmt.Sprintf("after %.20q the status to say %s", how, want), func() bool { return b.infos() == want })
		r.verb = "DEL"
		_, err = b.exec(r)
		must(t, err)
		if how != "" {
			b.tell("ADD", "")
		}
		nettest.Eventually(t, "the file to be gone", func() bool { all, _ := filepath.Glob(filepath.Join(base, "cni", "*")); return len(all) == 0 })
		b.ran()
		b.nothingLeft()
		b.api.Delete("pods", "default/web")
	}
}

// An ADD that fails leaves no file.
func TestDeviceInfoRefused(t *testing.T) {
	b, base := withDevices(t)
	must(t, os.MkdirAll(filepath.Join(base, "dp"), 0o755), os.WriteFile(filepath.Join(base, "dp/v-r-d1-device.json"), []byte(`{"type":"pci","version":"1.1.0"}`), 0o644))
	must(t, os.WriteFile(filepath.Join(b.plugins, "informed"), []byte("#!/bin/sh\ntest $CNI_COMMAND = DEL || { echo '{\"cniVersion\":\"1.0.0\",\"code\":123,\"msg\":\"told to fail\"}'; exit 1; }\n"), 0o700))
	r := b.asks("web", "dev", nettest.Pod(t))
	_, err := b.exec(r)
	programs.WantError(t, err, 123, "told to fail")
	nettest.Eventually(t, "the file to be gone", func() bool { all, _ := filepath.Glob(filepath.Join(base, "cni", "*")); return len(all) == 0 })
	b.nothingLeft()
}
