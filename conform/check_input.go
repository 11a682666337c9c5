package conform

import (
	"bytes"
	"encoding/json"
	"net"
	"slices"
	"strings"
)

// inputChecks are about what plugins read, and what they must not need.
var inputChecks = []Check{
	{
		Name: "version/bare", Level: Must, Spec: "CNI 1.1.0, section 2, VERSION: required environment parameters; 0.4.0, Parameters, VERSION: none",
		Says:  "VERSION needs no variable but CNI_COMMAND",
		Needs: []string{"version/answer"}, run: versionBare,
	},
	{
		Name: "errors/environment-later", Level: Must, Spec: "CNI 1.1.0, section 2, DEL and CHECK: required environment parameters, and section 5, Error: code 4 (it should be that, and must name the variable)",
		Says:  "if a variable is missing that DEL or CHECK requires, the plugin fails with code 4 and names the variable",
		Needs: []string{"errors/environment"}, run: errorsEnvironmentLater,
	},
	{
		Name: "check/prev-result", Level: Should, Spec: "CNI 1.1.0, section 2, CHECK: it must consult prevResult, and should return an error for what is missing; 0.4.0, Parameters, CHECK", Since: "0.4.0",
		Says:  "CHECK expects what prevResult says: it fails if prevResult lists another address than the container has",
		Needs: []string{"check/address-gone"}, run: checkPrevResult,
	},
	{
		Name: "check/silent", Level: Own, Early: Must, Spec: "CNI 0.4.0, Parameters, CHECK: nothing or an error; 1.1.0 shows no output (the suite's own there)", Since: "0.4.0",
		Says: "a CHECK that succeeds writes nothing to standard output",
		Each: true, Needs: []string{"check/well"}, run: checkSilent,
	},
	{
		Name: "keys/args", Level: Own, Early: Should, Spec: "CNI 0.4.0, Network Configuration: args; later CNI's CONVENTIONS.md (the suite's own there)",
		Says: "a plugin ignores what it does not understand in args",
		Each: true, Needs: []string{"basic/attach"}, run: keysArgs,
	},
	{
		Name: "keys/dns", Level: Should, Spec: "CNI 1.1.0, section 1, Plugin configuration objects: dns; 0.4.0, Network Configuration",
		Says:  "a plugin that takes the list's dns passes it on as it is: nameservers and search domains in their order",
		Needs: []string{"add/result"}, run: keysDNS,
	},
}

func versionBare(t *T) {
	for i, p := range t.list().Plugins {
		got := t.Exec(Call{Type: p.Type, Verb: "VERSION", Bare: true, Stdin: t.list().Conf(i, map[string]any{"cniVersion": t.Version})})
		var info versionInfo
		if err := json.Unmarshal(got.Stdout, &info); err != nil || len(info.Supported) == 0 {
			t.Failf("without CNI_PATH, VERSION does not say which versions the plugin supports: %s", got)
		}
	}
}

// errorsEnvironmentLater gives each call an attachment of its own: a DEL that is not refused may have deleted it.
func errorsEnvironmentLater(t *T) {
	for verb, variables := range map[string][]string{"DEL": {"CNI_CONTAINERID", "CNI_IFNAME"}, "CHECK": required} {
		if verb == "CHECK" && (t.list().DisableCheck || older(t.Version, "0.4.0")) {
			continue
		}
		for _, v := range variables {
			a := t.Attached()
			for i := range t.list().Plugins {
				c := t.Call(verb, i, a, a.Result)
				without(v).do(&c)
				got := t.Exec(c)
				switch e := t.wantError(got, verb+" without "+v); {
				case e == nil:
				case e.Code != 4:
					t.as(Should, func() { t.Failf("%s without %s: the code is %d, not 4: %s", verb, v, e.Code, got) })
				case !strings.Contains(e.Msg+e.Details, v):
					t.Failf("%s without %s: the error does not name the variable: %s", verb, v, got)
				}
			}
			t.Del(a)
		}
	}
}

// checkPrevResult changes the result, and not the container, as check/address-gone does: a plugin that compares the container only with what it
// knows itself does not see that.
func checkPrevResult(t *T) {
	t.checkable()
	a := t.Attached()
	r := t.mustResult(a)
	l := t.linkNow(a)
	if l == nil {
		t.Unsupportedf("the plugins make no %s in the network namespace", a.Ifname)
	}
	var lost net.IP
	for _, addr := range r.addresses(r.of(a)) {
		if l.has(addr) != nil {
			lost = addr
			break
		}
	}
	if lost == nil {
		t.Unsupportedf("the result has no address of %s", a.Ifname)
	}
	whole := a.Result
	a.Result = bytes.ReplaceAll(whole, []byte(`"`+lost.String()+`/`), []byte(`"`+another(lost).String()+`/`))
	if bytes.Equal(a.Result, whole) { // which says the address in other words
		t.Unsupportedf("the suite does not find %s in the result: %s", lost, short(whole))
	}
	if got := t.Check(a); got.OK() {
		t.Failf("CHECK succeeds, although prevResult says that %s has %s, and it has %s", a.Ifname, another(lost), lost)
	} else {
		t.wantError(got, "CHECK with another address in prevResult")
	}
	a.Result = whole
	t.MustDel(a)
}

func checkSilent(t *T) {
	t.checkable()
	a := t.Attached()
	for i := range t.list().Plugins {
		if got := t.Exec(t.Call("CHECK", i, a, a.Result)); got.OK() {
			t.wantSilent(got)
		}
	}
	t.MustDel(a)
}

// wantSilent judges that a call which succeeded has written nothing.
func (t *T) wantSilent(got Answer) {
	if out := bytes.TrimSpace(got.Stdout); len(out) > 0 {
		t.Failf("%s succeeds, and writes to standard output: %s", got.Call.Verb, got)
	}
}

func keysArgs(t *T) {
	a := t.NewAttachment()
	a.Keys = map[string]any{"args": map[string]any{"labels": map[string]any{"conform": "unknown"}, "conform.example.com": []any{1, nil}}}
	if got := t.Add(a); !got.OK() {
		t.Failf("ADD with unknown args in the configuration fails: %s", got)
	}
	t.wantDel(a, "DEL with unknown args in the configuration")
}

// keysDNS judges a plugin that takes over a part of the list's dns. Plugins need not take it at all.
func keysDNS(t *T) {
	servers, search := []string{"192.0.2.53", "192.0.2.9", "2001:db8::53"}, []string{"b.example.com", "a.example.com"}
	a := t.NewAttachment()
	a.Keys = map[string]any{"dns": map[string]any{"nameservers": servers, "domain": "conform.example.com", "search": search, "options": []string{"ndots:3"}}}
	got := t.Add(a)
	if e, err := got.Failure(); !got.OK() && err == nil && e.Code == 2 && strings.Contains(e.Msg+e.Details, "dns") {
		delete(a.Keys, "dns")
		t.Del(a)
		t.Unsupportedf("the list refuses dns: %s", got)
	}
	if !got.OK() {
		t.ordinaryFails(got)
	}
	dns := t.mustResult(a).DNS
	t.MustDel(a)
	takes := func(given, has []string) (some, all bool) {
		var same []string
		for _, one := range has {
			if slices.Contains(given, one) {
				same = append(same, one)
			}
		}
		return len(same) > 0, slices.Equal(same, given)
	}
	some, all := takes(servers, dns.Nameservers)
	searched, whole := takes(search, dns.Search)
	if !some && !searched && dns.Domain != "conform.example.com" {
		t.Unsupportedf("no plugin of the list takes the dns of the configuration")
	}
	if some && !all {
		t.Failf("the list says nameservers %v, and the result %v", servers, dns.Nameservers)
	}
	if searched && !whole {
		t.Failf("the list says search domains %v, and the result %v", search, dns.Search)
	}
}
