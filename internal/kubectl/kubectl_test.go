package kubectl

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// cluster is a kubectl of a cluster with three nodes, of which n3 has no agent, and n2 has two pods of the DaemonSet. On n1
// each command of berth succeeds. On n2 it ends with 1.
const cluster = `#!/bin/sh
echo "kubectl $*" >>"$CALLS"
case "$*" in
*"get pods --namespace=kube-system --selector=app.kubernetes.io/name=berth"*) cat <<-END
	{"items": [
	  {"metadata": {"name": "berth-a"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}},
	  {"metadata": {"name": "berth-b"}, "spec": {"nodeName": "n2"}, "status": {"phase": "Running"}},
	  {"metadata": {"name": "berth-old", "deletionTimestamp": "2026-11-28T00:00:00Z"}, "spec": {"nodeName": "n2"}, "status": {"phase": "Running"}},
	  {"metadata": {"name": "berth-c"}, "spec": {"nodeName": "n3"}, "status": {"phase": "Pending"}}]}
	END
	;;
*"get pods"*) echo '{"items": []}' ;;
*"get nodes"*) test -z "$FORBIDDEN" || { echo "nodes is forbidden" >&2; exit 1; }; printf 'node/n3\nnode/n2\nnode/n1\n' ;;
*"get pod --namespace=default"*" web") printf n2 ;;
*"get pod "*) echo "not found" >&2; exit 1 ;;
*"exec --namespace=kube-system berth-a --container=berthd -- berth "*json) echo '{"ok": true}' ;;
*"exec --namespace=kube-system berth-b --container=berthd -- berth "*json) printf '1\n2\n'; exit 1 ;;
*"exec --namespace=kube-system berth-a --container=berthd -- berth "*) printf 'first\nsecond' ;;
*"exec --namespace=kube-system berth-b --container=berthd -- berth "*) echo "bad" >&2; exit 1 ;;
*) echo "unexpected: $*" >&2; exit 9 ;;
esac
`

// call runs the plugin with a kubectl of its own, and returns what it says and its exit code.
func call(t *testing.T, args ...string) (out, errs string, calls string, code int) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(cluster), 0o755); err != nil {
		t.Fatal(err)
	}
	noted := filepath.Join(dir, "calls")
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	t.Setenv("CALLS", noted)
	var o, e bytes.Buffer
	code = run(t.Context(), args, &o, &e)
	all, err := os.ReadFile(noted)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return o.String(), e.String(), string(all), code
}

// With several nodes each line begins with the node's name. A node without an agent is told, and the exit code is the
// greatest.
func TestAll(t *testing.T) {
	out, errs, _, code := call(t, "status")
	if out != "n1  first\nn1  second\n" || code != 1 {
		t.Errorf("exit code %d, and\n%s", code, out)
	}
	for _, want := range []string{"n2  bad\n", "n3  kubectl berth: node n3 has no agent that runs"} {
		if !strings.Contains(errs, want) {
			t.Errorf("%q lacks %q", errs, want)
		}
	}
}

// With -o json there is one object, whatever a node has printed.
func TestJSON(t *testing.T) {
	out, _, _, code := call(t, "audit", "-o", "json")
	want := "{\n  \"n1\": {\n    \"ok\": true\n  },\n  \"n2\": [\n    1,\n    2\n  ],\n  \"n3\": null\n}\n"
	if out != want || code != 1 {
		t.Errorf("exit code %d, and\n%s", code, out)
	}
}

// A node that is named, and a pod that is named, choose the node. Then berth's words are as they are on the node, and kubectl's
// flags are kubectl's.
func TestOne(t *testing.T) {
	for _, c := range []struct{ args, out, errs, call string }{
		{"--node n1 status", "first\nsecond", "", "kubectl exec --namespace=kube-system berth-a --container=berthd -- berth status"},
		{"--node=n1 --context=c --kubeconfig=f status --root /x", "first\nsecond", "", "kubectl --kubeconfig=f --context=c exec --namespace=kube-system berth-a --container=berthd -- berth status --root /x"},
		{"history default/web", "", "bad\n", "kubectl exec --namespace=kube-system berth-b --container=berthd -- berth history default/web"},
	} {
		out, errs, calls, _ := call(t, strings.Fields(c.args)...)
		if out != c.out || errs != c.errs || !strings.Contains(calls, c.call+"\n") || strings.Count(calls, " exec ") != 1 {
			t.Errorf("%s: %q, %q, and the calls\n%s", c.args, out, errs, calls)
		}
	}
	_, errs, calls, code := call(t, "history", "default/gone")
	if strings.Count(calls, " exec ") != 2 || code != 1 {
		t.Errorf("a pod that is gone: exit code %d, %s, and the calls\n%s", code, errs, calls)
	}
}

// What cannot be done is said before anybody is asked.
func TestBad(t *testing.T) {
	for _, c := range []struct {
		args, want string
		code       int
	}{
		{"", "which command of berth", 2},
		{"uninstall", "uninstall does not ask an agent", 2},
		{"--nod n1 status", "unknown flag: --nod", 2},
		{"-n other status", "namespace other has no pods with app.kubernetes.io/name=berth", 1},
		{"--node n9 status", "node n9 has no agent", 1},
	} {
		_, errs, calls, code := call(t, strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(errs, c.want) || strings.Contains(calls, "exec") {
			t.Errorf("%s: exit code %d, %s, and the calls\n%s", c.args, code, errs, calls)
		}
	}
	t.Setenv("FORBIDDEN", "yes")
	out, errs, _, _ := call(t, "status")
	if !strings.Contains(errs, "nodes without an agent are not shown: nodes is forbidden") || !strings.Contains(out, "n1  first") {
		t.Errorf("without the right to list nodes: %s%s", out, errs)
	}
}
