package chart

import (
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	admissionv1 "k8s.io/api/admissionregistration/v1"
)

// judge evaluates the first validation of the agents' policy, as the API server does: whether an agent of a node may write an object.
func judge(t *testing.T, node, resource string, object map[string]any) bool {
	t.Helper()
	policy := one[admissionv1.ValidatingAdmissionPolicy](t, objects(t, ""))
	variables := map[string]any{}
	given := map[string]any{
		"object": object, "variables": variables,
		"request": map[string]any{
			"resource": map[string]any{"resource": resource},
			"userInfo": map[string]any{"extra": map[string]any{"authentication.kubernetes.io/node-name": []string{node}}},
		},
	}
	env, err := cel.NewEnv(cel.OptionalTypes(), ext.Strings(ext.StringsVersion(2)),
		cel.Variable("object", cel.DynType), cel.Variable("variables", cel.DynType), cel.Variable("request", cel.DynType))
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
		variables[v.Name] = value(v.Expression)
	}
	return value(policy.Spec.Validations[0].Expression) == true
}

// An agent speaks in the name of its own node alone, also if that has a name that is longer than an Event's reportingInstance may be.
func TestPolicy(t *testing.T) {
	long := strings.Repeat("a", 63) + "." + strings.Repeat("b", 63) + "." + strings.Repeat("c", 63)
	event := func(of string) map[string]any {
		return map[string]any{"reportingInstance": of, "metadata": map[string]any{"name": "e"}}
	}
	named := func(name string) map[string]any { return map[string]any{"metadata": map[string]any{"name": name}} }
	for _, try := range []struct {
		node, resource string
		object         map[string]any
		may            bool
	}{
		{"n1", "events", event("n1"), true}, {"n1", "events", event("n2"), false}, {"n1", "events", event("n"), false},
		{long, "events", event(long[:128]), true}, {long, "events", event(long[:127]), false}, {long[:128], "events", event(long[:128]), true},
		{"n1", "nodes", named("n1"), true}, {"n1", "nodes", named("n2"), false}, {long, "nodes", named(long), true}, {long, "nodes", named(long[:128]), false},
	} {
		if may := judge(t, try.node, try.resource, try.object); may != try.may {
			t.Errorf("the agent of node %s may write %s %v: %v, want %v", try.node, try.resource, try.object, may, try.may)
		}
	}
}
