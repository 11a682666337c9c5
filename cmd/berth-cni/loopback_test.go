package main

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// asLoopback returns the path of a copy of the plugin by the name of loopback, as "berth install"
// makes it.
func asLoopback(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), loopback)
	program, err := os.ReadFile(filepath.Join(bin, "berth-cni"))
	must(t, err)
	must(t, os.WriteFile(path, program, 0o755))
	return path
}

// loCall executes a plugin for a pod's lo. An empty value takes a variable away.
func loCall(t *testing.T, program, command, netns, conf string) (out string, err error) {
	t.Helper()
	cmd := exec.Command(program)
	env := podEnv(command)
	maps.Copy(env, map[string]string{"CNI_IFNAME": "lo", "CNI_NETNS": netns, "CNI_PATH": bin})
	cmd.Env = []string{}
	for k, v := range env {
		if v != "" {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	cmd.Stdin = strings.NewReader(conf)
	raw, err := cmd.Output()
	return string(raw), err
}

// isUp reports whether a pod's lo is up.
func isUp(t *testing.T, pod *ns.Netns) (up bool) {
	t.Helper()
	must(t, pod.Do(func() error {
		link, err := look(device{name: lo})
		up = link.flags()&1 == 1
		return err
	}))
	return up
}

func loConf(version string, keys ...string) string {
	all := append([]string{`"cniVersion":"` + version + `"`, `"name":"cni-loopback"`, `"type":"loopback"`}, keys...)
	return "{" + strings.Join(all, ",") + "}"
}

// inVersion returns the reference plugin's answer in the form of a version, as the CNI library
// converts it. The answer has the form of version 1.0.0, whatever version the test asks for.
func inVersion(t *testing.T, answer, version string) any {
	t.Helper()
	var result types100.Result
	must(t, json.Unmarshal([]byte(answer), &result))
	result.CNIVersion = "1.0.0"
	as, err := result.GetAsVersion(version)
	must(t, err)
	raw, err := json.Marshal(as)
	must(t, err)
	return values(t, string(raw))
}

// values returns the values of an answer. No answer has DNS settings, so values leaves them
// out.
func values(t *testing.T, answer string) map[string]any {
	t.Helper()
	var all map[string]any
	must(t, json.Unmarshal([]byte(answer), &all))
	delete(all, "dns")
	return all
}

// In each version, ADD answers what the reference plugin answers, and sets lo up; CHECK sees
// that lo is up; DEL leaves lo up. No agent runs.
func TestLoopback(t *testing.T) {
	nettest.Need(t)
	peer := filepath.Join(programs.Peers(t, loopback), loopback)
	ours := asLoopback(t)
	for _, v := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(v, func(t *testing.T) {
			pod := nettest.Pod(t)
			path := pod.Ref().Path
			var answers [2]string
			for i, program := range []string{peer, ours} {
				must(t, pod.Do(func() error { return setFlags(0) }))
				out, err := loCall(t, program, "ADD", path, loConf(v))
				if err != nil || !isUp(t, pod) {
					t.Fatalf("ADD of %s: %v, lo is up: %t\n%s", program, err, isUp(t, pod), out)
				}
				answers[i] = out
			}
			if diff := cmp.Diff(inVersion(t, answers[0], v), any(values(t, answers[1]))); diff != "" {
				t.Errorf("-reference +ours:\n%s", diff)
			}
			if v >= "0.4.0" {
				if out, err := loCall(t, ours, "CHECK", path, loConf(v)); err != nil {
					t.Errorf("CHECK: %v\n%s", err, out)
				}
			}
			if out, err := loCall(t, ours, "DEL", path, loConf(v)); err != nil || out != "" || !isUp(t, pod) {
				t.Errorf("DEL: %v, lo is up: %t\n%s", err, isUp(t, pod), out)
			}
			must(t, pod.Do(func() error { return setFlags(0) }))
			if v >= "0.4.0" {
				out, err := loCall(t, ours, "CHECK", path, loConf(v))
				if err == nil || failure(t, []byte(out)) != 103 {
					t.Errorf("CHECK of a lo that is down: %v\n%s", err, out)
				}
			}
		})
	}
}

// A late DEL of a pod that is gone does not touch the lo of another pod that has the path by now.
func TestLoopbackLateDEL(t *testing.T) {
	nettest.Need(t)
	ours, path := asLoopback(t), filepath.Join(t.TempDir(), "netns")
	for _, pod := range []*ns.Netns{nettest.Pod(t), nettest.Pod(t)} {
		_ = os.Remove(path)
		must(t, os.Symlink(pod.Ref().Path, path))
		if out, err := loCall(t, ours, "ADD", path, loConf("1.0.0")); err != nil || !isUp(t, pod) {
			t.Fatalf("ADD: %v, lo is up: %t\n%s", err, isUp(t, pod), out)
		}
		if out, err := loCall(t, ours, "DEL", path, loConf("1.0.0")); err != nil || !isUp(t, pod) {
			t.Errorf("DEL: %v, lo is up: %t\n%s", err, isUp(t, pod), out)
		}
	}
}

// The plugin loopback also answers without a network namespace, without an agent, and behind another
// plugin.
func TestLoopbackEdges(t *testing.T) {
	nettest.Need(t)
	ours, pod := asLoopback(t), nettest.Pod(t)
	plugin := filepath.Join(bin, "berth-cni")
	path := pod.Ref().Path
	must(t, nettest.LoopbackUp()) // this node's
	full := nettest.Pod(t)
	nettest.Run(t, full, "ip link set lo up")
	for _, also := range []string{"127.0.0.2/8", "10.1.2.3/32", "fd00::1/128"} {
		nettest.Run(t, full, "ip address add "+also+" dev lo")
	}
	gone := filepath.Join(t.TempDir(), "gone")
	for name, test := range map[string]struct {
		program, command, netns, conf, want string
		code                                uint
	}{
		"the reference's name is enough": {ours, "ADD", path, `{"cniVersion":"1.0.0","name":"n","type":"other"}`, `"127.0.0.1/8"`, 0},
		"the type is enough":             {plugin, "ADD", path, loConf("1.0.0"), `"127.0.0.1/8"`, 0},
		"more addresses":                 {ours, "ADD", full.Ref().Path, loConf("1.0.0"), `"ips":[{"interface":0,"address":"127.0.0.1/8"},{"interface":0,"address":"::1/128"}]}`, 0},
		"behind another plugin":          {ours, "ADD", path, loConf("1.0.0", `"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/32"}]}`), `{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/32"}]}`, 0},
		"VERSION":                        {ours, "VERSION", "", loConf("1.0.0"), `"supportedVersions":["0.1.0"`, 0},
		"STATUS":                         {ours, "STATUS", "", loConf("1.1.0"), "", 0},
		"GC":                             {ours, "GC", "", loConf("1.1.0", `"cni.dev/valid-attachments":[]`), "", 0},
		"no such verb yet":               {ours, "GC", "", loConf("1.0.0"), `cniVersion has no GC`, 1},
		"a version of the future":        {ours, "ADD", path, loConf("9.0.0"), `cniVersion is not supported`, 1},
		"ADD without a pod":              {ours, "ADD", "", loConf("1.0.0"), "CNI_NETNS", 4},
		"ADD of a pod that is gone":      {ours, "ADD", gone, loConf("1.0.0"), "network namespace is gone", 4},
		"DEL without a pod":              {ours, "DEL", "", loConf("1.0.0"), "", 0},
		"DEL of a pod that is gone":      {ours, "DEL", gone, loConf("1.0.0"), "", 0},
		"DEL of the node's own":          {ours, "DEL", "/proc/self/ns/net", loConf("1.0.0"), "", 0},
		"no JSON":                        {ours, "ADD", path, "{", "not a JSON object", 6},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := loCall(t, test.program, test.command, test.netns, test.conf)
			if test.code == 0 && err != nil || test.code > 0 && (err == nil || failure(t, []byte(out)) != test.code) {
				t.Fatalf("%v: %s", err, out)
			}
			if !strings.Contains(out, test.want) || test.want == "" && out != "" {
				t.Errorf("the answer is %s, without %s", out, test.want)
			}
		})
	}
	here, err := ns.Self()
	must(t, err)
	defer here.Close()
	if !isUp(t, here) {
		t.Error("the node's own lo is down")
	}
}
