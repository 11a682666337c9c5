// Package action tests the GitHub Action of this folder, and the example of a workflow that uses it.
package action

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/berth-net/berth/conform/command"
	"github.com/berth-net/berth/conform/internal/trial"
)

var must = trial.Must

// step is a step of an action or of a workflow's job.
type step struct {
	ID, If, Uses, Shell, Run string
	With, Env                map[string]string
}

// definition is action.yml, as GitHub's documentation of composite actions has it.
type definition struct {
	Name, Description string
	Inputs            map[string]struct {
		Description string
		Required    bool
		Default     *string
	}
	Outputs map[string]struct{ Description, Value string }
	Runs    struct {
		Using string
		Steps []step
	}
}

// read decodes a file, which may have no other keys than into has.
func read(t *testing.T, path string, into any) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	d := yaml.NewDecoder(f)
	d.KnownFields(true)
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// found returns what the first group of a pattern matches in a text, each once, sorted.
func found(pattern, text string) []string {
	var all []string
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Each input is described, reaches the script, and is used there. Each flag that the script gives exists.
func TestAction(t *testing.T) {
	var a definition
	read(t, "action.yml", &a)
	script, err := os.ReadFile("judge")
	must(t, err)
	if a.Name == "" || a.Description == "" || a.Runs.Using != "composite" || len(a.Runs.Steps) != 1 || a.Runs.Steps[0].Shell != "bash" {
		t.Fatalf("no composite action of one step: %+v", a)
	}
	env := map[string]string{}
	for name, in := range a.Inputs {
		if in.Description == "" || in.Required != (in.Default == nil) {
			t.Errorf("the input %s has no description; or it is required and has a default, or neither", name)
		}
		env["INPUT_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))] = "${{ inputs." + name + " }}"
	}
	if given := a.Runs.Steps[0].Env; !maps.Equal(given, env) || len(env) < 5 {
		t.Errorf("the step gets %v, and the inputs are %v", given, env)
	}
	if used := found(`\$(INPUT_[A-Z_]+)`, string(script)); !slices.Equal(used, slices.Sorted(maps.Keys(env))) {
		t.Errorf("the script uses %q of %v", used, env)
	}
	for name, out := range a.Outputs {
		if out.Description == "" || out.Value != "${{ steps."+a.Runs.Steps[0].ID+".outputs."+name+" }}" || !strings.Contains(string(script), "\n\techo \""+name+"=") {
			t.Errorf("output %s: %+v, or the script does not write it", name, out)
		}
	}
	flags := command.New(command.Program).Flags()
	given := found(` --([a-z-]+)`, string(script))
	for _, name := range given {
		if flags.Lookup(name) == nil {
			t.Errorf("cni-conform has no flag --%s", name)
		}
	}
	for _, name := range []string{"bin-dir", "conf", "state-dir", "hook-dir", "run", "known", "repeat", "ifname", "grace", "timeout", "points", "churn", "fail-on"} {
		if _, there := a.Inputs[name]; !there || !slices.Contains(given, name) {
			t.Errorf("there is no input for --%s, or the script does not give the flag", name)
		}
	}
}

// The example gives each input that is required, and no other than there are, and reads no output but those.
func TestExample(t *testing.T) {
	var a definition
	read(t, "action.yml", &a)
	var w struct {
		Name        string
		On          []string
		Permissions map[string]string
		Jobs        map[string]struct {
			RunsOn  string `yaml:"runs-on"`
			Timeout int    `yaml:"timeout-minutes"`
			Steps   []step
		}
	}
	read(t, "../examples/workflow.yml", &w)
	var uses []step
	for name, job := range w.Jobs {
		if job.Timeout == 0 {
			t.Errorf("the job %s may run for hours", name)
		}
		for _, s := range job.Steps {
			if strings.HasPrefix(s.Uses, "berth-net/berth/conform/action@") {
				uses = append(uses, s)
			}
		}
	}
	if len(uses) != 1 {
		t.Fatalf("the example uses the action in %d steps", len(uses))
	}
	if !strings.HasSuffix(uses[0].Uses, "@COMMIT") {
		t.Errorf("%s: expected @COMMIT, which stands for what does not change", uses[0].Uses)
	}
	for key := range uses[0].With {
		if _, there := a.Inputs[key]; !there {
			t.Errorf("the action has no input %s", key)
		}
	}
	for name, in := range a.Inputs {
		if in.Required && uses[0].With[name] == "" {
			t.Errorf("the example lacks the input %s", name)
		}
	}
	raw, err := os.ReadFile("../examples/workflow.yml")
	must(t, err)
	outputs := found(`steps\.`+uses[0].ID+`\.outputs\.([a-z-]+)`, string(raw))
	for _, name := range outputs {
		if _, there := a.Outputs[name]; !there {
			t.Errorf("the action has no output %s", name)
		}
	}
	if len(outputs) == 0 {
		t.Error("the example uses no output")
	}
}
