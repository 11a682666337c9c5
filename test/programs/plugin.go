package programs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/api"
)

// Conf returns a configuration of the plugin for an agent. Each key is `"name":value`; it
// adds to the keys that every configuration has, or replaces one of them.
func Conf(root string, keys ...string) string {
	all := slices.Clone(keys)
	for _, d := range []string{`"cniVersion":"1.1.0"`, `"name":"net"`, `"type":"berth-cni"`, fmt.Sprintf(`"root":%q`, root)} {
		name, _, _ := strings.Cut(d, ":")
		if !slices.ContainsFunc(keys, func(k string) bool { return strings.HasPrefix(k, name) }) {
			all = append(all, d)
		}
	}
	return "{" + strings.Join(all, ",") + "}"
}

// Plugin returns the command by which a runtime executes the berth-cni of a folder, without
// its stdin. netns is the path of a pod's network namespace.
func Plugin(bin, verb, container, netns string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(bin, "berth-cni"))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + container, "CNI_NETNS=" + netns, "CNI_IFNAME=eth0", "CNI_PATH=" + bin}
	return cmd
}

// Exec runs the plugin for an agent, and returns what it prints. A numbered error is an
// *api.Error. keys are Conf's keys.
func Exec(bin, root, verb, container, netns string, keys ...string) ([]byte, error) {
	var out, complaint bytes.Buffer
	cmd := Plugin(bin, verb, container, netns)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(Conf(root, keys...)), &out, &complaint
	if err := cmd.Run(); err != nil {
		return nil, Refusal(out.Bytes(), fmt.Sprintf("%s of %s: %v", verb, container, err), complaint.String())
	}
	return out.Bytes(), nil
}

// Attached is the answer of an ADD.
type Attached struct {
	Addrs []netip.Addr
	Host  string // host veth
	Raw   string
}

// ReadResult reads the answer of an ADD.
func ReadResult(raw []byte) (Attached, error) {
	var res types100.Result
	if err := json.Unmarshal(raw, &res); err != nil {
		return Attached{}, fmt.Errorf("result of ADD: %w: %s", err, raw)
	}
	got := Attached{Host: res.Interfaces[0].Name, Raw: string(raw)}
	for _, ip := range res.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		got.Addrs = append(got.Addrs, addr.Unmap())
	}
	return got, nil
}

// Refusal returns the error of a plugin that failed, read from its output out. A numbered
// error (CNI 1.1, section 5, "Error") becomes an *api.Error. For any other output, the
// returned error has why and complaint, the plugin's stderr.
func Refusal(out []byte, why any, complaint string) error {
	var e api.Error
	if json.Unmarshal(out, &e) != nil || e.Code == 0 {
		return fmt.Errorf("berth-cni: %v, with no numbered error: %q %q", why, out, complaint)
	}
	return &e
}

// WantError checks an error's CNI code and a part of its text.
func WantError(t testing.TB, err error, code uint, part string) {
	t.Helper()
	e, ok := err.(*api.Error)
	if !ok || e.Code != code || !strings.Contains(e.Error(), part) {
		t.Errorf("error %v, want code %d with %q", err, code, part)
	}
}
