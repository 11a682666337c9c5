package node

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cri/critest"
	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/witness"
	"github.com/berth-net/berth/test/programs"
)

// member is an agent of a node in a cluster, with the cluster's API server and the node's container runtime.
type member struct {
	*agent
	cluster *kubetest.Server
	runtime *critest.Runtime
}

// startMember starts an agent on the node n1 of a cluster. API server and runtime have the agent's own pod, which has the node's
// network.
func startMember(t *testing.T) *member {
	t.Helper()
	m := &member{agent: newAgent(t, nil), cluster: kubetest.Serve(t), runtime: critest.Serve(t)}
	m.cluster.Put("nodes", kubetest.Object{
		"metadata": kubetest.Object{"name": "n1"}, "spec": kubetest.Object{"podCIDRs": []any{"10.244.1.0/24"}},
		"status": kubetest.Object{"addresses": []any{kubetest.Object{"type": "InternalIP", "address": "192.0.2.1"}}},
	})
	m.put("kube-system/berth", "uid-berth")
	m.runtime.Put("sandbox-berth", "kube-system", "berth", "uid-berth", true)
	m.configure(fmt.Sprintf("kubernetes: {node: n1, kubeconfig: %s, routing: native, health: {enabled: false}}\n", m.cluster.Kubeconfig(t)))
	m.start()
	t.Cleanup(m.remove)
	t.Cleanup(m.releaseAll)
	nettest.Eventually(t, "the agent to be ready for pods", func() bool {
		_, err := m.api.Status(t.Context(), "")
		return err == nil
	})
	return m
}

// put has the API server have a pod of the node, NAMESPACE/NAME.
func (m *member) put(pod, uid string) {
	namespace, name, _ := strings.Cut(pod, "/")
	m.cluster.Put("pods", kubetest.Object{
		"metadata": kubetest.Object{"namespace": namespace, "name": name, "uid": uid}, "spec": kubetest.Object{"nodeName": "n1"},
	})
}

// attach has the runtime attach a pod's sandbox, named as the pod is, with the UID uid-NAME. It returns the attachment's ID.
func (m *member) attach(pod string) (id string) {
	m.t.Helper()
	namespace, name, _ := strings.Cut(pod, "/")
	at := nettest.Pod(m.t)
	cmd := programs.Plugin(m.bin, "ADD", name, at.Ref().Path)
	cmd.Env = append(cmd.Env, "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE="+namespace+";K8S_POD_NAME="+name+";K8S_POD_UID=uid-"+name+";K8S_POD_INFRA_CONTAINER_ID="+name)
	cmd.Stdin = strings.NewReader(programs.Conf(string(m.root)))
	if out, err := cmd.CombinedOutput(); err != nil {
		m.t.Fatalf("ADD of %s: %v: %s", pod, err, out)
	}
	m.put(pod, "uid-"+name)
	m.runtime.Put(name, namespace, name, "uid-"+name, true)
	list, err := m.api.List(m.t.Context(), api.Filter{Container: name})
	must(m.t, err)
	return list[0].ID
}

// audit is `berth audit --cluster`, which counts attachments of any age.
func (m *member) audit(flags ...string) (out string, code int) {
	m.t.Helper()
	return m.berth(append([]string{"audit", "--cluster", "--min-age=0s", "--runtime-endpoint=unix://" + m.runtime.Socket}, flags...)...)
}

// wantAudit checks the exit code of an audit, and that it says these things.
func (m *member) wantAudit(what string, code int, says ...string) {
	m.t.Helper()
	out, got := m.audit()
	if got != code {
		m.t.Errorf("%s: exit code %d, want %d:\n%s", what, got, code, out)
	}
	for _, say := range says {
		if !strings.Contains(out, say) {
			m.t.Errorf("%s: the audit does not say %q:\n%s", what, say, out)
		}
	}
}

// An audit tells what API server and runtime say of attached pods, and what of that is leaked. It releases nothing, writes nothing to
// the API server, and names the command by which a person releases what is leaked.
func TestAuditCluster(t *testing.T) {
	m := startMember(t)
	ids := map[string]string{}
	for _, pod := range []string{"well", "leaked", "going", "coming", "web-0"} {
		ids[pod] = m.attach("default/" + pod)
	}
	m.add("stranger", nettest.Pod(t)) // of no pod
	m.wantAudit("all have all", 0, "5 attachments of pods compared with the API server and the runtime of node n1: none is leaked")

	m.cluster.Delete("pods", "default/leaked")
	m.runtime.Remove("leaked")
	m.cluster.Delete("pods", "default/going")
	m.runtime.Remove("coming")
	m.cluster.Delete("pods", "default/web-0")
	m.put("default/web-0", "uid-successor")
	m.runtime.Remove("web-0")
	m.runtime.Put("another", "default", "web-0", "uid-successor", true)
	m.cluster.Asked()
	before := m.list()
	out, code := m.audit("-o", "json")
	var audit struct {
		Node, Version, Endpoint string
		Compared                int
		Findings                []witness.Finding
		Unasked                 []any
	}
	must(t, json.Unmarshal([]byte(out), &audit))
	var found []string
	for _, f := range audit.Findings {
		found = append(found, fmt.Sprint(f.Pod.Name, " ", f.Verdict, " ", f.API, " ", f.Runtime, " ", f.Successor, " ", f.ID == ids[f.Pod.Name], " ", f.Release == "berth release "+f.ID))
	}
	slices.Sort(found)
	want := []string{
		"coming gone-from-runtime present gone  true false", "going gone-from-api gone present  true false",
		"leaked leaked gone gone  true true", "web-0 leaked gone gone uid-successor true true",
	}
	if code != 1 || audit.Node != "n1" || audit.Compared != 5 || audit.Endpoint != "unix://"+m.runtime.Socket || audit.Version == "" || audit.Unasked == nil || !slices.Equal(found, want) {
		t.Errorf("exit code %d, %q of\n%s", code, found, out)
	}
	m.wantAudit("in words", 1, "2 leaked", "the pod of this name is another one, uid-successor", "Berth releases nothing on that word. To release them by hand: berth release "+ids["leaked"]+" "+ids["web-0"],
		"gone-from-api: normal for a while", "gone-from-runtime: normal for a while")
	if out, code := m.berth("audit", "--cluster", "--runtime-endpoint", m.runtime.Socket); code != 0 || !strings.Contains(out, "too-young") {
		t.Errorf("of pods that may be being made, exit code %d:\n%s", code, out)
	}
	if asked := m.cluster.Asked(); slices.ContainsFunc(asked, func(a string) bool { return !strings.HasPrefix(a, "GET ") }) || !slices.Contains(asked, "GET /api/v1/pods") {
		t.Errorf("the audits had the agent ask %q", asked)
	}
	if after := m.list(); len(after) != len(before) {
		t.Errorf("of %d attachments the audits have left %d", len(before), len(after))
	}

	if out, code := m.berth("release", "--wait", ids["leaked"], ids["web-0"]); code != 0 {
		t.Fatalf("the command that the audit names: exit code %d: %s", code, out)
	}
	m.wantAudit("once they are released", 0, "3 attachments of pods compared", "none is leaked")
}

// A witness that cannot be asked is an exit code of its own, whatever the other one says, and nothing counts as leaked then.
func TestAuditClusterCannotAsk(t *testing.T) {
	m := startMember(t)
	m.attach("default/web")
	m.put("default/later", "uid-later") // so that the API server's version goes on
	m.wantAudit("at first", 0)

	m.cluster.Keep("pods")
	m.cluster.Delete("pods", "default/web")
	m.runtime.Remove("web")
	m.wantAudit("gone", 1, "1 leaked")
	m.cluster.Put("pods", kubetest.Object{"metadata": kubetest.Object{"namespace": "default", "name": "web", "uid": "uid-web"}, "spec": kubetest.Object{"nodeName": "n1"}})
	m.wantAudit("back", 0, "gone-from-runtime")
	m.cluster.Lag("pods") // which has web, too: a list from before proves nothing, and is refused whatever it says
	m.wantAudit("an API server that lags behind", 2, "could not ask the API server", "is older than what it told before", "unproven")
	m.cluster.Lag("")
	for _, status := range []int{500, 403} {
		m.cluster.Break(status)
		m.wantAudit(fmt.Sprint("an API server that answers ", status), 2, "could not ask the API server", "unproven", "release none of them", "whether one is leaked is not known")
	}
	m.cluster.Break(403)
	m.wantAudit("without the right", 2, "the agent may not list pods, a right that the chart's value clusterAudit gives")
	m.cluster.Break(0)

	m.cluster.Delete("pods", "default/web")
	m.runtime.Hang(true)
	m.wantAudit("a runtime that hangs", 2, "could not ask the runtime", "context deadline exceeded", "unproven  ", "web")
	m.runtime.Hang(false)
	m.runtime.Fail("not initialized")
	m.wantAudit("a runtime that refuses", 2, "could not ask the runtime", "not initialized")
	m.runtime.Fail("")
	m.runtime.Remove("sandbox-berth")
	m.runtime.Put("other", "other", "other", "uid-other", true)
	m.wantAudit("another runtime than the kubelet's", 2, "has no pod of those that the API server has on this node", "unproven")
	if out, code := m.berth("audit", "--cluster", "--runtime-endpoint=/run/none.sock"); code != 2 || !strings.Contains(out, "no such file or directory") {
		t.Errorf("a runtime that is not there: exit code %d:\n%s", code, out)
	}
	garbage := filepath.Join(t.TempDir(), "garbage.sock")
	l, err := net.Listen("unix", garbage)
	must(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("garbage, and no HTTP/2\r\n\r\n"))
			_ = c.Close()
		}
	}()
	if out, code := m.berth("audit", "--cluster", "--runtime-endpoint", garbage); code != 2 || !strings.Contains(out, "could not ask the runtime") {
		t.Errorf("garbage: exit code %d:\n%s", code, out)
	}
	if n := len(m.list()); n != 1 {
		t.Errorf("%d attachments of 1 are left", n)
	}
	m.cluster.Break(500) // so that watches end
	m.cluster.CloseClientConnections()
	m.cluster.Close()
	m.wantAudit("an API server that is away", 2, "could not ask the API server", "connection refused")
	m.kill()
	if out, code := m.audit(); code != 2 || !strings.Contains(out, "no agent answers") {
		t.Errorf("without an agent: exit code %d:\n%s", code, out)
	}
	m.start()
}
