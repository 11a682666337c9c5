package conform

import "net"

// usual is what an ordinary attachment of the list has. Checks go by it where they would else expect of plugins what these never do.
type usual struct {
	linked     bool // an interface with the name that ADD was given
	ipv4, ipv6 bool // an address of the family, as the result says
}

// usual returns what an ordinary attachment has. Only checks whose Check.usual is set can call it.
func (t *T) usual() usual {
	if t.suite.usual == nil {
		t.Unsupportedf("the suite could not see what an ordinary attachment has: %s", some(t.suite.unusual, 5))
	}
	return *t.suite.usual
}

// needInterface ends the check if the plugins make no interface with the name that ADD is given, as loopback does not. Only checks whose Check.usual is set
// can call it.
func (t *T) needInterface() {
	if !t.usual().linked {
		t.Unsupportedf("the plugins make no interface in the network namespace")
	}
}

// learnUsual attaches and detaches a pod on a node of its own, the first time that it is called in a run. A check's own node has to stay as it
// is, and its end would end the daemon of a second one: so learnUsual comes before the node is made.
func (t *T) learnUsual() {
	if t.suite.usual == nil {
		other := &T{suite: t.suite, ctx: t.ctx, Version: t.Version}
		other.do(Check{run: func(t *T) { t.suite.usual = t.lookAtUsual() }})
		t.suite.unusual = other.seen
	}
}

func (t *T) lookAtUsual() *usual {
	a := t.Attached()
	u := &usual{linked: t.linkNow(a) != nil}
	for _, one := range t.mustResult(a).IPs {
		if addr, _, err := net.ParseCIDR(one.Address); err == nil {
			u.ipv4 = u.ipv4 || addr.To4() != nil
			u.ipv6 = u.ipv6 || addr.To4() == nil
		}
	}
	t.MustDel(a)
	return u
}
