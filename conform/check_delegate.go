package conform

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
)

// delegateChecks are about what a plugin does with the IPAM plugin that it delegates to. STATUS and GC have theirs among statusChecks and gcChecks.
var delegateChecks = []Check{
	{
		Name: "add/delegated", Level: Must, Spec: "CNI 1.1.0, section 4, Delegated Plugin protocol (all variables: must; the configuration, and the folders of CNI_PATH: should); 0.4.0, IP Allocation",
		Says:  "a plugin delegates to the plugin that it finds in CNI_PATH, which gets all variables and the complete configuration",
		Needs: []string{"add/result"}, run: addDelegated,
	},
	{
		Name: "add/delegated-stderr", Level: Should, Early: Own, Spec: "CNI 1.1.0, section 4, Delegated plugin execution procedure (0.4.0 does not have it)",
		Says:  "what a plugin that is delegated to writes to standard error, the plugin writes there, too",
		Needs: []string{"add/delegated"}, run: addDelegatedStderr,
	},
	{
		Name: "add/delegated-failed", Level: Should, Early: Own, Spec: "CNI 1.1.0, section 4, Delegated plugin execution procedure (0.4.0 does not have it)",
		Says:  "if the ADD of a plugin fails that is delegated to, its DEL is called before ADD fails",
		Needs: []string{"add/delegated"}, run: addDelegatedFailed,
	},
	{
		Name: "add/delegated-result", Level: Must, Early: Should, Spec: "CNI 1.1.0, section 5, Delegated plugins (IPAM); 0.4.0, IP Allocation",
		Says:  "the result of an IPAM plugin lists addresses, and neither interfaces nor the indexes of any",
		Needs: []string{"add/delegated"}, run: addDelegatedResult,
	},
	{
		Name: "add/delegated-applied", Level: Own, Early: Should, Spec: "CNI 0.4.0, Result: ips and dns are those of the IPAM plugin (later the suite's own)",
		Says: "the addresses of the result are those that the IPAM plugin returned",
		Each: true, Needs: []string{"add/delegated"}, run: addDelegatedApplied,
	},
	{
		Name: "check/delegated", Level: Must, Spec: "CNI 1.1.0, section 4, Delegated plugin execution procedure (it must execute it, and the error should be returned); 0.4.0, Parameters, CHECK", Since: "0.4.0",
		Early: Should,
		Says:  "a plugin's CHECK executes CHECK of the plugin that it delegates to, and fails if that fails",
		Needs: []string{"check/well", "add/delegated"}, run: checkDelegated,
	},
	{
		Name: "del/delegated", Level: Must, Early: Should, Spec: "CNI 1.1.0, section 4, Delegated plugin execution procedure (it must execute it, and the error should be returned); 0.4.0, Parameters, DEL",
		Says:  "a plugin's DEL executes DEL of the plugin that it delegates to, and returns its error",
		Needs: []string{"leak/add-del", "add/delegated"}, run: delDelegated,
	},
}

// delegated executes ADD of the plugin that delegates, with a stand-in, after ADD of the plugins before it.
func (t *T) delegated(s *standIn) (*Attachment, Call, Answer) {
	a := t.NewAttachment()
	a.Args = "IgnoreUnknown=1;CONFORM=1"
	for i := range s.plugin {
		t.mustAddOne(i, a)
	}
	c := t.Call("ADD", s.plugin, a, a.Result)
	c.Path = s.path
	return a, c, t.Exec(c)
}

// mustDelegate is delegated for an ADD that has to work, and reach the stand-in.
func (t *T) mustDelegate() (*standIn, *Attachment, Call, Answer) {
	s := t.standInFor("none")
	a, c, got := t.delegated(s)
	switch {
	case !got.OK():
		t.ordinaryFails(got)
	case s.read("ADD", "in") == "":
		t.as(Should, func() {
			t.Fatalf("ADD succeeds, but does not call the %s that is in the first folder of CNI_PATH, %s", s.name, s.path)
		})
	}
	a.Result = got.Stdout
	return s, a, c, got
}

func addDelegated(t *T) {
	s, a, c, _ := t.mustDelegate()
	env := strings.Split(s.read("ADD", "env"), "\n")
	for name, value := range c.Env {
		if value != "" && !slices.Contains(env, name+"="+value) {
			t.Failf("%s does not get %s=%s, as the plugin did; of these it gets: %s", s.name, name, value, strings.Join(env, ", "))
		}
	}
	var gave, got map[string]any
	t.must(json.Unmarshal(c.Stdin, &gave))
	t.as(Should, func() {
		if err := json.Unmarshal([]byte(s.read("ADD", "in")), &got); err != nil {
			t.Fatalf("what %s gets as its configuration is not JSON: %v", s.name, err)
		}
		for key, value := range gave {
			if !reflect.DeepEqual(got[key], value) {
				t.Failf("the configuration of %s has not the %s that the plugin's has", s.name, key)
			}
		}
	})
	t.Del(a)
}

func addDelegatedStderr(t *T) {
	s, a, _, got := t.mustDelegate()
	if !strings.Contains(string(got.Stderr), standInSays) {
		t.Failf("%s wrote %q to standard error, and the plugin's has: %q", s.name, standInSays, short(got.Stderr))
	}
	t.Del(a)
}

func addDelegatedFailed(t *T) {
	s := t.standInFor("ADD")
	a, _, got := t.delegated(s)
	switch {
	case got.OK():
		t.Failf("ADD of %s fails, but ADD of the plugin that delegates to it succeeds: %s", s.name, got)
	case s.read("DEL", "in") == "":
		t.Failf("ADD of %s fails, and the plugin that delegates to it does not call its DEL: %s", s.name, got)
	}
	t.Del(a)
}

// abbreviated reads the result of an IPAM plugin.
func (t *T) abbreviated(s *standIn) *result {
	r, err := readResult(json.RawMessage(s.read("ADD", "out")))
	if err != nil {
		t.Fatalf("%s: %v", s.name, err)
	}
	return r
}

func addDelegatedResult(t *T) {
	s, a, _, _ := t.mustDelegate()
	r := t.abbreviated(s)
	if len(r.Interfaces) > 0 {
		t.Failf("the result of %s lists interfaces: %s", s.name, short([]byte(s.read("ADD", "out"))))
	}
	for _, one := range r.IPs {
		if one.Interface != nil {
			t.Failf("the result of %s says that address %s is of interface %d, and an IPAM plugin knows none", s.name, one.Address, *one.Interface)
		}
	}
	t.Del(a)
}

func addDelegatedApplied(t *T) {
	s, a, _, _ := t.mustDelegate()
	r := t.mustResult(a)
	for _, one := range t.abbreviated(s).IPs {
		if !slices.ContainsFunc(r.IPs, func(has ip) bool { return has.Address == one.Address }) {
			t.Failf("%s returned address %s, which the result does not list: %s", s.name, one.Address, short(a.Result))
		}
	}
	t.Del(a)
}

func checkDelegated(t *T) {
	t.checkable()
	s := t.standInFor("CHECK")
	a := t.Attached()
	c := t.Call("CHECK", s.plugin, a, a.Result)
	c.Path = s.path
	t.wantPassedOn(s, t.Exec(c))
	t.MustDel(a)
}

func delDelegated(t *T) {
	s := t.standInFor("DEL")
	a := t.Attached()
	for i := len(t.list().Plugins) - 1; i > s.plugin; i-- {
		t.Exec(t.Call("DEL", i, a, a.Result))
	}
	c := t.Call("DEL", s.plugin, a, a.Result)
	c.Path = s.path
	t.wantPassedOn(s, t.Exec(c))
	t.Del(a)
}

// wantPassedOn judges that a call has reached the stand-in, and returned its error.
func (t *T) wantPassedOn(s *standIn, got Answer) {
	switch verb := got.Call.Verb; {
	case !s.called():
		t.Failf("%s does not execute %s: %s", verb, s.name, got)
	case got.OK():
		t.as(Should, func() {
			t.Failf("%s of %s fails with code 50, but the plugin that delegates to it succeeds: %s", verb, s.name, got)
		})
	}
}
