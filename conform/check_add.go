package conform

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
)

// addChecks are about ADD.
var addChecks = []Check{
	{
		Name: "add/result", Level: Must, Spec: "CNI 1.1.0, section 5, ADD Success; 0.4.0, Result and Well-known Structures",
		Says: "the result of ADD has the form of the request's version, and lists what is really there: the container's interface, its MAC and its addresses",
		Each: true, Needs: []string{"basic/attach"}, run: addResult,
	},
	{
		Name: "add/prev-result", Level: Must, Spec: "CNI 1.1.0, section 5, ADD Success, last paragraph; 0.4.0, Network Configuration Lists",
		Says:  "a plugin prints the prevResult that it was given, with its own changes",
		Needs: []string{"add/result"}, run: addPrevResult,
	},
	{
		Name: "add/error-form", Level: Must, Spec: "CNI 1.1.0, section 2, Errors, and section 5, Error (the exit code must, the form should); 0.4.0, Result (both must)",
		Says: "a failed ADD exits with a code other than 0, and writes an error with a code and a message to standard output",
		Each: true, Needs: []string{"basic/attach"}, run: addErrorForm,
	},
	{
		Name: "add/existing-interface", Level: Must, Spec: "CNI 1.1.0, section 2, ADD (an error must; that the interface stays as it is is the suite's own); 0.4.0, Result: interfaces",
		Says:  "ADD fails if the container already has an interface of that name, and leaves this interface as it is",
		Needs: []string{"add/result", "add/error-form"}, run: addExistingInterface, usual: true,
	},
	{
		Name: "add/error-version", Level: Should, Early: Must, Spec: "CNI 0.4.0, General considerations and Result; 1.1.0, section 5, Error (it should: a note says so)",
		Says: "an error says in which cniVersion it is written",
		Each: true, Needs: []string{"add/error-form"}, run: addErrorVersion,
	},
	{
		Name: "add/failed-leaves-nothing", Level: Should, Spec: "CNI 1.1.0, section 2, DEL: even if state is missing, and section 3, Lifecycle & Ordering; 0.4.0, Parameters, DEL",
		Says:  "after a failed ADD and the DEL that has to follow it, nothing is left",
		Needs: []string{"leak/add-del"}, run: addFailedLeavesNothing, usual: true,
	},
	{
		Name: "add/failed-undone", Level: Own, Spec: "the suite's own: the specification has the runtime call DEL after an ADD that failed",
		Says:  "a failed ADD leaves nothing even if no DEL follows, for example because the runtime has ended",
		Needs: []string{"add/failed-leaves-nothing"}, run: addFailedUndone, usual: true,
	},
	{
		Name: "add/after-failed", Level: Own, Spec: "the suite's own: an ordinary ADD works, whatever was tried before",
		Says:  "a failed ADD and its DEL do not keep later ADDs from working",
		Needs: []string{"basic/attach"}, run: addAfterFailed, usual: true,
	},
}

func addResult(t *T) {
	a := t.NewAttachment()
	for i, p := range t.list().Plugins {
		t.mustAddOne(i, a)
		t.judgeForm(p.Type, t.mustResult(a))
	}
	t.judgeTruth(a, t.mustResult(a))
}

// mustAddOne executes ADD of one plugin of the list, with the result of the plugin before
// it. If the ADD fails, the check ends.
func (t *T) mustAddOne(plugin int, a *Attachment) {
	got := t.Exec(t.Call("ADD", plugin, a, a.Result))
	if !got.OK() {
		t.ordinaryFails(got)
	}
	if !json.Valid(got.Stdout) {
		t.Fatalf("%s ADD succeeds, but its output is not JSON: %q", got.Call.Type, short(got.Stdout))
	}
	a.Result = got.Stdout
}

func addPrevResult(t *T) {
	if len(t.list().Plugins) < 2 {
		t.Unsupportedf("the list has only one plugin, so that no plugin is given a prevResult")
	}
	a := t.NewAttachment()
	for i, p := range t.list().Plugins {
		prev := a.Result
		if t.mustAddOne(i, a); prev != nil {
			t.judgeKept(p.Type, a, prev)
		}
	}
}

// judgeKept looks for things that a plugin dropped from its prevResult although they still
// exist. Up to 0.4.0 a plugin might suppress whatever it wanted to.
func (t *T) judgeKept(plugin string, a *Attachment, prev json.RawMessage) {
	was, err := readResult(prev)
	if err != nil {
		t.Fatalf("%v", err)
	}
	var (
		is   = t.mustResult(a)
		l    = t.linkNow(a)
		lost []string
	)
	for _, one := range was.Interfaces {
		if !is.lists(one) && (one.Sandbox == "" || one.Name != a.Ifname || l != nil) {
			lost = append(lost, "interface "+one.Name)
		}
	}
	for _, addr := range was.addresses(was.of(a)) {
		if !is.gives(addr) && l != nil && l.has(addr) != nil {
			lost = append(lost, "address "+addr.String())
		}
	}
	for _, one := range was.Routes {
		if !is.routesTo(one) && l != nil && l.route(one) != nil {
			lost = append(lost, "route "+one.Dst)
		}
	}
	if servers := was.DNS.Nameservers; len(servers) > 0 && len(is.DNS.Nameservers) == 0 {
		lost = append(lost, fmt.Sprintf("nameservers %v", servers))
	}
	switch all := len(is.Interfaces)+len(is.IPs) == 0 && len(was.Interfaces)+len(was.IPs) > 0; {
	case len(lost) == 0:
	case older(t.Version, "1.0.0") && !all:
		t.Notef("%s leaves out these parts of its prevResult: %s", plugin, strings.Join(lost, ", "))
	default:
		t.Failf("the result of %s lacks these parts of its prevResult: %s", plugin, strings.Join(lost, ", "))
	}
}

// squat gives an attachment's pod an interface with the name that the attachment wants, and returns
// squatter's description of this interface. The interface has addresses of the families that the plugins' pods have: a plugin that
// finds another family sets up for it what it would never have set up.
func (t *T) squat(a *Attachment) string {
	var addrs []string
	usual := t.usual()
	if usual.ipv4 {
		addrs = append(addrs, "198.51.100.1/24")
	}
	if usual.ipv6 {
		addrs = append(addrs, "2001:db8:5a::1/64")
	}
	t.must(a.Pod.Do(func() error {
		// ip link add net0 type veth peer name squat0
		l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: a.Ifname}, PeerName: "squat0"}
		if err := netlink.LinkAdd(l); err != nil {
			return fmt.Errorf("making %s in a pod: %w", a.Ifname, err)
		}
		return configure(a.Ifname, addrs...)
	}))
	return t.squatter(a)
}

// squatter describes those parts of the interface of squat that no plugin may change.
func (t *T) squatter(a *Attachment) string {
	l := t.linkNow(a)
	if l == nil {
		return "nothing"
	}
	s := fmt.Sprintf("%s %s index %d mac %s mtu %d", l.Attrs().Name, l.Type(), l.Attrs().Index, l.Attrs().HardwareAddr, l.Attrs().MTU)
	for _, addr := range l.addrs {
		if addr.Scope == int(netlink.SCOPE_UNIVERSE) {
			s += " address " + addr.IPNet.String()
		}
	}
	return s
}

func addExistingInterface(t *T) {
	t.needInterface()
	a := t.NewAttachment()
	was := t.squat(a)
	got := t.Add(a)
	t.wantError(got, "ADD of "+a.Ifname+", which the container has already")
	if is := t.squatter(a); is != was {
		t.as(Own, func() { t.Failf("ADD changed the interface that was there.\nbefore: %s\nafter:  %s", was, is) })
	}
}

// addNowhere executes ADD into a network namespace that does not exist.
func (t *T) addNowhere() (*Attachment, Answer) {
	a := t.NewAttachment()
	a.Pod = &Pod{fd: -1, Path: filepath.Join(netnsDir, "nowhere")}
	return a, t.Add(a)
}

// nowhere is the name that messages give to the call of addNowhere.
const nowhere = "ADD into a network namespace that does not exist"

func addErrorForm(t *T) {
	_, got := t.addNowhere()
	e := t.wantError(got, nowhere)
	if e == nil || e.Code >= 100 || wellKnown(e.Code) {
		return
	}
	if older(t.Version, "1.0.0") {
		t.Failf("%s: the error has code %d, which is reserved and has no meaning: %s", nowhere, e.Code, got)
	} else {
		t.Notef("%s: the error has code %d, which is reserved and has no meaning: %s", nowhere, e.Code, got)
	}
}

// wellKnown reports whether an error code has a meaning (CNI 1.1, section 5,
// "Error").
func wellKnown(code uint) bool {
	return code >= 1 && code <= 7 || code == 11 || code == 50 || code == 51
}

// addErrorVersion judges only whether an error names a version. The specification leaves open which
// version the error names (containernetworking/cni#827).
func addErrorVersion(t *T) {
	_, got := t.addNowhere()
	e := t.wantError(got, nowhere)
	switch {
	case e == nil:
	case e.Version == "" && older(t.Version, "1.0.0"):
		t.Failf(`%s: the error lacks "cniVersion": %s`, nowhere, short(got.Stdout))
	case e.Version == "":
		t.Notef(`%s: the error lacks "cniVersion", which it should have: %s`, nowhere, short(got.Stdout))
	case e.Version != t.Version:
		t.Notef("%s: the request is in version %s, the error in %s", nowhere, t.Version, e.Version)
	}
}
