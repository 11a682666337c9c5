package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	admissionv1 "k8s.io/api/admissionregistration/v1"
)

// judge evaluates the validations of the agents' policy in a chart of some values, as the API server does: whether an agent of a node
// may make an object of an old one; nil: of none.
func judge(t *testing.T, text, node, resource string, old, object map[string]any) bool {
	t.Helper()
	policy := one[admissionv1.ValidatingAdmissionPolicy](t, objects(t, text))
	variables := map[string]any{}
	given := map[string]any{
		"object": object, "oldObject": old, "variables": variables,
		"request": map[string]any{
			"resource": map[string]any{"resource": resource},
			"userInfo": map[string]any{"extra": map[string]any{"authentication.kubernetes.io/node-name": []string{node}}},
		},
	}
	env, err := cel.NewEnv(cel.OptionalTypes(), ext.Strings(ext.StringsVersion(2)),
		cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType), cel.Variable("variables", cel.DynType), cel.Variable("request", cel.DynType))
	must(t, err)
	value := func(expression string) any {
		t.Helper()
		ast, issues := env.Compile(expression)
		must(t, issues.Err())
		program, err := env.Program(ast)
		must(t, err)
		v, _, err := program.Eval(given)
		must(t, err)
		return v.Value()
	}
	for _, v := range policy.Spec.Variables {
		if old != nil || !strings.Contains(v.Expression, "oldObject") { // the API server evaluates those alone that are used
			variables[v.Name] = value(v.Expression)
		}
	}
	return !slices.ContainsFunc(policy.Spec.Validations, func(v admissionv1.Validation) bool { return value(v.Expression) != true })
}

// An agent speaks in the name of its own node alone, also if that has a name that is longer than an Event's reportingInstance may be.
func TestPolicy(t *testing.T) {
	long := strings.Repeat("a", 63) + "." + strings.Repeat("b", 63) + "." + strings.Repeat("c", 63)
	event := func(of string) map[string]any {
		return map[string]any{"reportingInstance": of, "metadata": map[string]any{"name": "e"}}
	}
	named := func(name string) map[string]any {
		return map[string]any{"metadata": map[string]any{"name": name}, "status": map[string]any{}}
	}
	for _, try := range []struct {
		node, resource string
		object         map[string]any
		may            bool
	}{
		{"n1", "events", event("n1"), true}, {"n1", "events", event("n2"), false}, {"n1", "events", event("n"), false},
		{long, "events", event(long[:128]), true}, {long, "events", event(long[:127]), false}, {long[:128], "events", event(long[:128]), true},
		{"n1", "nodes", named("n1"), true}, {"n1", "nodes", named("n2"), false}, {long, "nodes", named(long), true}, {long, "nodes", named(long[:128]), false},
	} {
		for _, values := range []string{"", "networks: {enabled: true}"} {
			if may := judge(t, values, try.node, try.resource, try.object, try.object); may != try.may {
				t.Errorf("with %q the agent of node %s may write %s %v: %v, want %v", values, try.node, try.resource, try.object, may, try.may)
			}
		}
	}
	if !judge(t, "networks: {enabled: true}", "n1", "events", nil, event("n1")) {
		t.Error("an agent may make no Event")
	}
}

// Of a pod an agent changes the network status alone, and of pods of its own node alone.
func TestPolicyOfPods(t *testing.T) {
	pod := func(node string, change func(metadata, status map[string]any)) map[string]any {
		metadata := map[string]any{"name": "p", "labels": map[string]any{"app": "a"}, "annotations": map[string]any{"a": "1", "k8s.v1.cni.cncf.io/network-status": "[]"}}
		status := map[string]any{"podIP": "10.0.0.1", "conditions": []any{map[string]any{"type": "Ready"}}}
		change(metadata, status)
		return map[string]any{"metadata": metadata, "spec": map[string]any{"nodeName": node}, "status": status}
	}
	annotate := func(key string, value any) func(metadata, _ map[string]any) {
		return func(metadata, _ map[string]any) {
			all := maps.Clone(metadata["annotations"].(map[string]any))
			if all[key] = value; value == nil {
				delete(all, key)
			}
			metadata["annotations"] = all
		}
	}
	same := func(_, _ map[string]any) {}
	const status = "k8s.v1.cni.cncf.io/network-status"
	for name, try := range map[string]struct {
		of       string
		from, to func(metadata, status map[string]any)
		may      bool
	}{
		"the network status":   {"n1", same, annotate(status, "[{}]"), true},
		"the first one":        {"n1", func(m, _ map[string]any) { delete(m, "annotations") }, func(m, _ map[string]any) { m["annotations"] = map[string]any{status: "[]"} }, true},
		"none any more":        {"n1", same, annotate(status, nil), true},
		"another node's":       {"n2", same, annotate(status, "[{}]"), false},
		"nobody's":             {"", same, annotate(status, "[{}]"), false},
		"another annotation":   {"n1", same, annotate("a", "2"), false},
		"a new annotation":     {"n1", same, annotate("b", "2"), false},
		"one annotation less":  {"n1", same, annotate("a", nil), false},
		"labels":               {"n1", same, func(m, _ map[string]any) { m["labels"] = map[string]any{"app": "b"} }, false},
		"no labels":            {"n1", same, func(m, _ map[string]any) { delete(m, "labels") }, false},
		"finalizers":           {"n1", same, func(m, _ map[string]any) { m["finalizers"] = []any{"a/b"} }, false},
		"the address":          {"n1", same, func(_, s map[string]any) { s["podIP"] = "10.0.0.2" }, false},
		"what it is ready for": {"n1", same, func(_, s map[string]any) { s["conditions"] = []any{} }, false},
		"the name of the node": {"n1", func(m, _ map[string]any) { m["name"] = "n1" }, func(m, s map[string]any) { m["name"] = "n1"; s["podIP"] = "" }, false},
	} {
		if may := judge(t, "networks: {enabled: true}", "n1", "pods", pod(try.of, try.from), pod(try.of, try.to)); may != try.may {
			t.Errorf("the agent of n1 may change %s of a pod of %q: %v, want %v", name, try.of, may, try.may)
		}
	}
}
