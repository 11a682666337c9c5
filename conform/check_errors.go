package conform

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// errorChecks are about calls that no plugin can serve.
var errorChecks = []Check{
	{
		Name: "errors/version", Level: Should, Spec: "CNI 1.1.0, section 5, Error: code 1; 0.4.0, Result",
		Says:  "the plugin refuses an unsupported version with code 1",
		Needs: []string{"add/error-form"}, run: errorsVersion,
	},
	{
		Name: "errors/environment", Level: Must, Spec: "CNI 1.1.0, section 2, ADD: required environment parameters, and section 5, Error: code 4 (it should be that, and must name the variable)",
		Says:  "if a required variable is missing, the plugin fails with code 4 and names the variable",
		Needs: []string{"add/error-form"}, run: errorsEnvironment,
	},
	{
		Name: "errors/command", Level: Should, Spec: "CNI 1.1.0, section 2, CNI operations, and section 5, Error: code 4",
		Says:  "the plugin refuses an unknown CNI_COMMAND with code 4",
		Needs: []string{"add/error-form"}, run: errorsCommand,
	},
	{
		Name: "errors/json", Level: Should, Spec: "CNI 1.1.0, section 5, Error: code 6",
		Says:  "the plugin refuses a configuration that is not JSON with code 6",
		Needs: []string{"add/error-form"}, run: errorsJSON,
	},
	{
		Name: "errors/name", Level: Should, Spec: "CNI 1.1.0, section 1, Configuration format: name, and section 5, Error (the form should; another code than 7 is a note)",
		Says:  "if the plugin refuses a missing or bad network name, its error has the usual form",
		Needs: []string{"add/error-form"}, run: errorsName,
	},
	{
		Name: "errors/no-residue", Level: Own, Spec: "the suite's own: a refused call has not begun",
		Says:  "a refused call changes nothing",
		Needs: []string{"leak/add-del"}, run: errorsNoResidue,
	},
}

// fault is one way to make a call that no plugin can serve: do spoils a proper call.
type fault struct {
	what string
	do   func(*Call)
}

// badVersion, badCommand and badJSON are faults.
var (
	badVersion = fault{"in cniVersion " + unknowable, func(c *Call) { c.Stdin = withKey(c.Stdin, "cniVersion", unknowable) }}
	badCommand = fault{"CNI_COMMAND=CONFORM", func(c *Call) { c.Verb = "CONFORM" }}
	badJSON    = fault{"with half a JSON object on standard input", func(c *Call) { c.Stdin = c.Stdin[:len(c.Stdin)/2] }}
)

// without returns the fault that a variable is not set.
func without(variable string) fault {
	return fault{"without " + variable, func(c *Call) {
		c.Env = maps.Clone(c.Env)
		delete(c.Env, variable)
	}}
}

// named returns the fault that the network has the given bad name. If name is nil, the
// configuration has no name.
func named(name any) fault {
	what := "without a network name"
	if text, ok := name.(string); ok {
		what = "of a network called " + text
	}
	return fault{what, func(c *Call) { c.Stdin = withKey(c.Stdin, "name", name) }}
}

// withKey replaces a key of a configuration; a nil value removes the key.
func withKey(stdin []byte, key string, value any) []byte {
	var conf map[string]any
	if err := json.Unmarshal(stdin, &conf); err != nil { // the suite wrote this JSON
		panic(err)
	}
	if conf[key] = value; value == nil {
		delete(conf, key)
	}
	raw, err := json.Marshal(conf)
	if err != nil {
		panic(err)
	}
	return raw
}

// tryFault executes, for each plugin of the list, an ADD with a fault, after proper ADDs of
// the plugins before it. It passes each answer to judge. It executes DEL for the ADDs that
// succeeded, but not for those that were refused.
func (t *T) tryFault(f fault, judge func(Answer)) {
	for i := range t.list().Plugins {
		a := t.NewAttachment()
		for before := range i {
			t.mustAddOne(before, a)
		}
		c := t.Call("ADD", i, a, a.Result)
		f.do(&c)
		got := t.Exec(c)
		judge(got)
		added := i
		if got.OK() && json.Valid(got.Stdout) {
			added, a.Result = i+1, got.Stdout
		}
		for k := added - 1; k >= 0; k-- {
			t.Exec(t.Call("DEL", k, a, a.Result))
		}
	}
}

// wantError judges an answer that should be an error, and returns the error. If the answer is
// no error, wantError reports that and returns nil.
func (t *T) wantError(got Answer, what string) *Error {
	if got.OK() || got.Hung || got.Exit < 0 {
		t.Failf("%s: expected an error, but got: %s", what, got)
		return nil
	}
	e, err := got.Failure()
	if err != nil {
		t.as(t.formLevel(), func() { t.Failf("%s: the error does not have the form of a CNI error: %v: %s", what, err, got) })
		return nil
	}
	return e
}

// wantCode tries a fault with each plugin, and fails unless each answer is an error with that code.
func (t *T) wantCode(f fault, code uint) {
	t.tryFault(f, func(got Answer) {
		if e := t.wantError(got, "ADD "+f.what); e != nil && e.Code != code {
			t.Failf("ADD %s: the code is %d, not %d: %s", f.what, e.Code, code, got)
		}
	})
}

func errorsVersion(t *T) { t.wantCode(badVersion, 1) }

func errorsCommand(t *T) { t.wantCode(badCommand, 4) }

func errorsJSON(t *T) { t.wantCode(badJSON, 6) }

// required are the variables that ADD needs.
var required = []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"}

func errorsEnvironment(t *T) {
	for _, v := range required {
		f := without(v)
		t.tryFault(f, func(got Answer) {
			switch e := t.wantError(got, "ADD "+f.what); {
			case e == nil:
			case e.Code != 4:
				t.as(Should, func() { t.Failf("ADD %s: the code is %d, not 4: %s", f.what, e.Code, got) })
			case !strings.Contains(e.Msg+e.Details, v):
				t.Failf("ADD %s: the error does not name the variable: %s", f.what, got)
			}
		})
	}
}

// badNames are the faults that the check errors/name tries. Runtimes have to check names; plugins may
// check names, but need not.
var badNames = []fault{named(nil), named("-conform"), named("../conform")}

func errorsName(t *T) {
	for _, f := range badNames {
		t.tryFault(f, func(got Answer) {
			if got.OK() {
				t.Notef("the plugin does not refuse ADD %s", f.what)
				return
			}
			if e := t.wantError(got, "ADD "+f.what); e != nil && e.Code != 7 {
				t.Notef("ADD %s: the code is %d, but CNI has code 7 for this: %s", f.what, e.Code, got)
			}
		})
	}
}

func errorsNoResidue(t *T) {
	faults := []fault{badVersion, badCommand, badJSON}
	for _, v := range required {
		faults = append(faults, without(v))
	}
	before := t.Warm()
	for _, f := range slices.Concat(faults, badNames[:1]) {
		t.tryFault(f, func(got Answer) {
			if got.OK() {
				t.Notef("the plugin does not refuse ADD %s", f.what)
			}
		})
		before = t.wantNothingNew(before, "a refused ADD "+f.what)
	}
}
