package former

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
)

// cached is a file of libcni's cache (libcni, cachedInfo). Libcni before 0.8 wrote nothing but the result, and later versions
// no netns for a long time.
type cached struct {
	Kind           string                     `json:"kind"`
	ContainerID    string                     `json:"containerId"`
	Config         []byte                     `json:"config"`
	IfName         string                     `json:"ifName"`
	NetworkName    string                     `json:"networkName"`
	NetNS          string                     `json:"netns"`
	CniArgs        [][2]string                `json:"cniArgs"`
	CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs"`
	Result         json.RawMessage            `json:"result"`
}

// entry is an attachment with what only this package needs of its file.
type entry struct {
	Attachment
	when         time.Time // the file's, which libcni writes after ADD
	config       *config
	args         [][2]string
	capabilities map[string]json.RawMessage
}

// parseEntry reads a file of libcni's cache, whose name is NETWORK-CONTAINER-IFNAME.
func parseEntry(path string, raw []byte) (*entry, error) {
	var info cached
	if err := json.Unmarshal(raw, &info); err != nil {
		return nil, fmt.Errorf("decoding it: %w", err)
	}
	switch info.Kind {
	case libcni.CNICacheV1:
	case "":
		return nil, errors.New("it has no kind: libcni before 0.8 wrote such files, which do not say which plugins attached the pod")
	default:
		return nil, fmt.Errorf("its kind is %.64q; expected %q", info.Kind, libcni.CNICacheV1)
	}
	if err := info.check(filepath.Base(path)); err != nil {
		return nil, err
	}
	c, err := parseConfig(info.Config)
	if err != nil {
		return nil, err
	}
	if c.name != info.NetworkName {
		return nil, fmt.Errorf("it is of network %q, and its configuration of network %q", info.NetworkName, c.name)
	}
	e := &entry{config: c, args: info.CniArgs, capabilities: info.CapabilityArgs}
	e.Attachment = Attachment{
		Container: info.ContainerID, Ifname: info.IfName, Network: c.name, Version: c.version, DisableCheck: c.disableCheck,
		Args: argsText(info.CniArgs), Netns: info.NetNS, Pod: podOf(info.CniArgs), Path: path,
	}
	if e.Plugins, err = c.configure(e.capabilities); err != nil {
		return nil, err
	}
	if e.Result, err = resultAs(c.version, info.Result); err != nil {
		e.NoResult = reason(err)
	}
	if e.Netns == "" {
		e.Netns = sandbox(e.Result)
	}
	if e.Ifname == loopback && !e.isLoopback() {
		return nil, cni.CheckIfname(loopback)
	}
	return e, nil
}

// check checks what identifies the attachment.
func (c *cached) check(name string) error {
	if e := cni.CheckNetworkName(c.NetworkName); e != nil {
		return fmt.Errorf("networkName: %w", e)
	}
	if err := checkKey(c.ContainerID, c.IfName); err != nil && c.IfName != loopback {
		return err
	}
	if want := c.NetworkName + "-" + c.ContainerID + "-" + c.IfName; name != want {
		return fmt.Errorf("it speaks of %s", want)
	}
	if c.NetNS != "" {
		if e := cni.CheckNetnsPath(c.NetNS); e != nil {
			return e
		}
	}
	if strings.ContainsRune(argsText(c.CniArgs), 0) {
		return errors.New("cniArgs has a NUL, which no environment variable can have")
	}
	return nil
}

// checkKey checks a container's ID and an interface's name.
func checkKey(container, ifname string) error {
	if e := cni.CheckContainerID(container); e != nil {
		return e
	}
	if e := cni.CheckIfname(ifname); e != nil {
		return e
	}
	return nil
}

const loopback = "lo"

// isLoopback reports whether a runtime attached the pod to its own loopback device: no network's plugin has to do with that, and the
// runtime deletes it by itself.
func (e *entry) isLoopback() bool {
	return e.Ifname == loopback && strings.Join(e.Types(), "") == "loopback"
}

// argsText is CNI_ARGS, as libcni's invoke.Args writes it.
func argsText(args [][2]string) string {
	var pairs []string
	for _, a := range args {
		pairs = append(pairs, a[0]+"="+a[1])
	}
	return strings.Join(pairs, ";")
}

// podOf returns the pod of which arguments tell; nil: of none, or nobody could show it. Multus gives delegates each of them twice.
func podOf(args [][2]string) *api.Pod {
	var pairs []string
	seen := map[string]bool{}
	for _, a := range args {
		if strings.HasPrefix(a[0], "K8S_POD_") && a[1] != "" && !seen[a[0]] {
			seen[a[0]] = true
			pairs = append(pairs, a[0]+"="+a[1])
		}
	}
	known, e := cni.ParseArgs(strings.Join(append(pairs, "IgnoreUnknown=1"), ";"))
	if e != nil || known.Pod == nil || known.Pod.Name == "" {
		return nil
	}
	return known.Pod
}

// resultAs converts a result to a version, as libcni does for CHECK and DEL (libcni, getCachedResult).
func resultAs(version string, raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, errors.New("there is no result")
	}
	result, err := create.CreateFromBytes(raw)
	if err != nil {
		return nil, fmt.Errorf("reading the result: %w", err)
	}
	if result, err = result.GetAsVersion(version); err != nil {
		return nil, fmt.Errorf("converting the result to version %s: %w", version, err)
	}
	text, err := json.Marshal(result)
	if err != nil {
		return nil, fmt.Errorf("encoding the result: %w", err)
	}
	return text, nil
}

// sandbox returns the network namespace of a result's interfaces, which is CNI_NETNS of ADD (CNI 1.1, section 5, "Success"); "": the
// result has none, or several.
func sandbox(result json.RawMessage) string {
	var r struct {
		Interfaces []struct {
			Sandbox string `json:"sandbox"`
		} `json:"interfaces"`
	}
	if json.Unmarshal(result, &r) != nil {
		return ""
	}
	path := ""
	for _, i := range r.Interfaces {
		switch {
		case i.Sandbox == "" || i.Sandbox == path:
		case path != "" || cni.CheckNetnsPath(i.Sandbox) != nil:
			return ""
		default:
			path = i.Sandbox
		}
	}
	return path
}
