package containerd

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// pod is a pod with one container, as the kubelet would make it.
type pod struct {
	daemon    *daemon
	name      string
	attempt   int
	port      int    // of the node, that leads to the pod's port 80; 0: none
	id        string // of the sandbox
	container string
	addrs     []netip.Addr
}

// asKubelet is the security context of an ordinary pod: the pod's own network
// and IPC namespace, each container's own PID namespace (1 is CONTAINER in
// CRI's NamespaceMode).
var asKubelet = map[string]any{"namespace_options": map[string]any{"pid": 1}}

// newPods returns n pods that do not run yet.
func (d *daemon) newPods(n, attempt int) []*pod {
	var ps []*pod
	for i := range n {
		ps = append(ps, &pod{daemon: d, name: fmt.Sprintf("pod%d", i), attempt: attempt})
	}
	return ps
}

// each calls f for all pods at once, and ends the test if a call fails.
func each(t *testing.T, what string, ps []*pod, f func(*pod) error) {
	t.Helper()
	var wg sync.WaitGroup
	for _, p := range ps {
		wg.Go(func() {
			if err := f(p); err != nil {
				t.Errorf("%s %s: %v", what, p.name, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// run runs the pod and its container, and learns its addresses.
func (p *pod) run() error {
	var ports []map[string]int
	if p.port != 0 {
		ports = append(ports, map[string]int{"container_port": 80, "host_port": p.port})
	}
	sandbox, err := p.file("sandbox", map[string]any{
		"metadata":      map[string]any{"name": p.name, "namespace": "default", "uid": "uid-" + p.name, "attempt": p.attempt},
		"log_directory": p.daemon.dir, "port_mappings": ports,
		"annotations": map[string]string{"kubernetes.io/ingress-bandwidth": "100M", "kubernetes.io/egress-bandwidth": "50M"},
		"linux":       map[string]any{"cgroup_parent": p.daemon.cgroup, "security_context": asKubelet},
	})
	if err != nil {
		return err
	}
	container, err := p.file("container", map[string]any{
		"metadata": map[string]any{"name": "box"}, "image": map[string]any{"image": imageName},
		"command": sleeper, "log_path": p.name + ".log",
		"linux": map[string]any{"security_context": asKubelet},
	})
	if err != nil {
		return err
	}
	if p.id, err = p.daemon.run("runp", sandbox); err != nil {
		return err
	}
	if p.container, err = p.daemon.run("create", p.id, container, sandbox); err != nil {
		return err
	}
	if _, err := p.daemon.run("start", p.container); err != nil {
		return err
	}
	return p.inspect()
}

// file writes a part of the pod for crictl.
func (p *pod) file(part string, v any) (string, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	path := filepath.Join(p.daemon.dir, p.name+"-"+part+".json")
	return path, os.WriteFile(path, raw, 0o600)
}

// inspect asks the runtime for the pod's addresses.
func (p *pod) inspect() error {
	out, err := p.daemon.run("inspectp", "-o", "json", p.id)
	if err != nil {
		return err
	}
	type address struct{ IP netip.Addr }
	var answer struct {
		Status struct {
			Network struct {
				IP            netip.Addr
				AdditionalIPs []address
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		return fmt.Errorf("reading inspectp's answer: %w", err)
	}
	p.addrs = []netip.Addr{answer.Status.Network.IP}
	for _, a := range answer.Status.Network.AdditionalIPs {
		p.addrs = append(p.addrs, a.IP)
	}
	return nil
}

// exec runs a command in the container.
func (p *pod) exec(args ...string) (string, error) {
	return p.daemon.run(append([]string{"exec", "-s", p.container}, args...)...)
}

// seesItself checks that the pod's eth0 has the addresses that the plugin told
// the runtime.
func (p *pod) seesItself() error {
	out, err := p.exec("ip", "addr", "show", "dev", "eth0")
	if err != nil {
		return err
	}
	for _, a := range p.addrs {
		if !strings.Contains(out, " "+a.String()+"/") {
			return fmt.Errorf("eth0 does not have %s:\n%s", a, out)
		}
	}
	return nil
}

// reaches pings all addresses of another pod from the container.
func (p *pod) reaches(other *pod) error {
	for _, a := range other.addrs {
		ping := "ping"
		if a.Is6() {
			ping = "ping6"
		}
		if _, err := p.exec(ping, "-c", "1", "-w", "10", a.String()); err != nil {
			return err
		}
	}
	return nil
}

// stop and remove are what the kubelet does at a pod's end. end does both at once.
func (p *pod) stop() error   { _, err := p.daemon.run("stopp", p.id); return err }
func (p *pod) remove() error { _, err := p.daemon.run("rmp", p.id); return err }
func (p *pod) end() error    { _, err := p.daemon.run("rmp", "-f", p.id); return err }
