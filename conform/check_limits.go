package conform

import (
	"maps"
	"strings"
)

// limitChecks are about names at their limits, and about keys and arguments that a plugin
// does not know.
var limitChecks = []Check{
	{
		Name: "limits/container-id", Level: Must, Spec: "CNI 1.1.0, section 2, Parameters: CNI_CONTAINERID",
		Says:  "a container id may be as long as runtimes make it, and have every character that is allowed; two ids that differ in one character are two containers",
		Needs: []string{"add/result", "leak/add-del"}, run: limitsContainerID,
	},
	{
		Name: "limits/bad-container-id", Level: Should, Spec: "CNI 1.1.0, section 2, Parameters: CNI_CONTAINERID, and section 5, Error: code 4 (the form should; that nothing is left is the suite's own)",
		Says:  "if the plugin refuses a container id that is not allowed, its error has the usual form; if not, the id works like any other",
		Needs: []string{"add/error-form", "leak/add-del"}, run: limitsBadContainerID,
	},
	{
		Name: "limits/ifname", Level: Must, Spec: "CNI 1.1.0, section 2, Parameters: CNI_IFNAME; 0.4.0, Parameters, ADD (both: the name or an error; that 15 bytes are taken is the suite's own)",
		Says:  "an interface name may have 15 bytes",
		Needs: []string{"add/result", "leak/add-del"}, run: limitsIfname, usual: true,
	},
	{
		Name: "limits/bad-ifname", Level: Must, Spec: "CNI 1.1.0, section 2, Parameters: CNI_IFNAME; 0.4.0, Parameters, ADD (both: an error must; that nothing changes is the suite's own)",
		Says:  "ADD of an interface name that cannot be used fails, and changes nothing",
		Needs: []string{"add/error-form", "leak/add-del"}, run: limitsBadIfname, usual: true,
	},
	{
		Name: "limits/network-name", Level: Must, Spec: "CNI 1.1.0, section 1, Configuration format: name (that nothing is left should; that 62 bytes are taken is the suite's own)",
		Says:  "a network's name may have every character that is allowed",
		Needs: []string{"leak/add-del"}, run: limitsNetworkName,
	},
	{
		Name: "keys/unknown", Level: Must, Spec: "CNI 1.1.0, section 1, Other keys, and section 5, Error: code 2",
		Says:  "the plugin either ignores a key that it does not know, or refuses it with an error of the usual form",
		Needs: []string{"add/error-form", "leak/add-del"}, run: keysUnknown,
	},
	{
		Name: "args/ignore-unknown", Level: Own, Spec: "the suite's own: CNI's CONVENTIONS.md, CNI_ARGS; what runtimes of Kubernetes set",
		Says:  "with IgnoreUnknown=1 in CNI_ARGS, the plugin ignores the arguments that it does not know",
		Needs: []string{"basic/attach"}, run: argsIgnoreUnknown,
	},
}

// cycle executes ADD and DEL of an unusual attachment. Both have to succeed, and should leave
// nothing.
func (t *T) cycle(a *Attachment, what string) {
	before := t.Seen()
	if got := t.Add(a); !got.OK() {
		t.Failf("ADD %s fails: %s", what, got)
		t.Del(a)
		return
	}
	t.wantDel(a, "DEL "+what)
	t.as(Should, func() { t.WantNothingNew(before, "ADD and DEL "+what) })
}

func limitsContainerID(t *T) {
	t.Warm()
	a := t.NewAttachment()
	a.ID = "0aZ_.-" + strings.Repeat("-._", 3)
	t.cycle(a, "of container "+a.ID)

	// Plugins often name things after the first part of a container's id.
	first, second := t.NewAttachment(), t.NewAttachment()
	t.MustAdd(first)
	if got := t.Add(second); !got.OK() {
		t.Notef("the suite did not try two ids that are almost the same: the list attaches only one container: %s", got)
		return
	}
	t.MustDel(first)
	t.MustDel(second)
	alike := strings.Repeat("0123456789abcdef", 4)[:63]
	first.ID, second.ID = alike+"0", alike+"1"
	before := t.Seen()
	for _, a := range []*Attachment{first, second} {
		if got := t.Add(a); !got.OK() {
			t.Failf("ADD of container %s fails: %s", a.ID, got)
		}
	}
	linked := t.linkNow(second) != nil
	t.wantDel(first, "DEL of container "+first.ID)
	if linked && t.linkNow(second) == nil {
		t.Failf("DEL of container %s deleted %s of container %s", first.ID, second.Ifname, second.ID)
	}
	t.wantDel(second, "DEL of container "+second.ID)
	t.as(Should, func() { t.WantNothingNew(before, "ADD and DEL of two containers with ids of 64 digits") })
}

func limitsBadContainerID(t *T) {
	t.Warm()
	for _, id := range []string{"../conform", "conform/1", "-conform", "con form"} {
		a := t.NewAttachment()
		a.ID = id
		before := t.Seen()
		what := "ADD of container " + id
		if got := t.Add(a); !got.OK() {
			t.wantError(got, what)
		} else {
			t.Notef("the plugin does not refuse %s", what)
			t.wantDel(a, "DEL of container "+id)
		}
		t.as(Own, func() { t.WantNothingNew(before, what) })
	}
}

func limitsIfname(t *T) {
	t.needInterface()
	t.Warm()
	a := t.NewAttachment()
	a.Ifname = "abcdefghijklmno"
	before := t.Seen()
	if got := t.Add(a); !got.OK() {
		t.as(Own, func() { t.Fatalf("ADD of interface %s fails: %s", a.Ifname, got) })
	}
	if t.linkNow(a) == nil {
		t.noInterface(a)
	}
	t.wantDel(a, "DEL of interface "+a.Ifname)
	t.as(Should, func() { t.WantNothingNew(before, "ADD and DEL of interface "+a.Ifname) })
}

// limitsBadIfname asks for names that the kernel gives to no interface: an ADD that succeeds has made one of another name.
func limitsBadIfname(t *T) {
	t.needInterface()
	t.Warm()
	for _, name := range []string{"abcdefghijklmnop", "a/b", "..", "../net0", "a b"} {
		a := t.NewAttachment()
		a.Ifname = name
		before := t.Seen()
		t.wantError(t.Add(a), "ADD of interface "+name)
		t.as(Own, func() { t.WantNothingNew(before, "the refused ADD of interface "+name) })
	}
}

// limitsNetworkName does not blame a plugin that has a list of its networks' names and
// refuses any other.
func limitsNetworkName(t *T) {
	t.Warm()
	plain := t.NewAttachment()
	plain.Keys = map[string]any{"name": "conform"}
	if got := t.Add(plain); !got.OK() {
		t.Unsupportedf("the plugins attach only in networks whose names they know: %s", got)
	}
	t.wantDel(plain, "DEL of network conform")
	every := "0aZ_.-conform"
	t.cycleNamed(every)
	if t.outcome == "" {
		t.as(Own, func() { t.cycleNamed(every + strings.Repeat("-conform", 6) + "7") }) // 62 bytes
	}
}

// cycleNamed is cycle in the network of that name. An ADD and a DEL of another pod come first, so
// that folders and chains that belong to the network itself may stay.
func (t *T) cycleNamed(name string) {
	a := t.NewAttachment()
	a.Keys = map[string]any{"name": name}
	first := *a
	first.ID, first.Pod = a.ID+"-first", t.NewPod()
	if got := t.Add(&first); !got.OK() {
		t.Fatalf("ADD in network %s fails: %s", name, got)
	}
	t.wantDel(&first, "DEL in network "+name)
	t.cycle(a, "in network "+name)
}

func keysUnknown(t *T) {
	const key, value = "conformUnknown", "conform-value"
	t.Warm()
	before := t.Seen()
	a := t.NewAttachment()
	a.Keys = map[string]any{key: value}
	got := t.Add(a)
	if got.OK() {
		t.wantDel(a, "DEL with an unknown key")
		t.as(Should, func() { t.WantNothingNew(before, "ADD and DEL with an unknown key") })
		return
	}
	switch e := t.wantError(got, "ADD with an unknown key"); {
	case e == nil:
	case e.Code == 2 && !(strings.Contains(e.Msg+e.Details, key) && strings.Contains(e.Msg+e.Details, value)):
		t.Failf("the error of code 2 does not name the unknown key %s and its value: %s", key, got)
	default:
		t.Notef("the plugin refuses unknown keys, which is allowed: %s", got)
	}
	a.Keys = maps.Clone(a.Keys)
	delete(a.Keys, key)
	t.Del(a)
	t.as(Should, func() { t.WantNothingNew(before, "ADD with an unknown key, which was refused") })
}

func argsIgnoreUnknown(t *T) {
	a := t.NewAttachment()
	a.Args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=conform;K8S_POD_NAME=pod-1;K8S_POD_INFRA_CONTAINER_ID=" + a.ID +
		";K8S_POD_UID=5f5ac6f2-6b6a-4a0f-9e2b-0f5a3a1d2c3b;CONFORM_UNKNOWN=1"
	if got := t.Add(a); !got.OK() {
		t.Failf("ADD with CNI_ARGS=%s fails: %s", a.Args, got)
	}
	t.wantDel(a, "DEL with CNI_ARGS="+a.Args)
}
