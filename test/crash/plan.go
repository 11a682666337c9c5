package main

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/test/crash/killer"
)

// plan is one fault: a verdict about one call of a verb.
type plan struct {
	verdict killer.Verdict
	n       int    // the fault is at the nth call of the verb, from 1; 0: at the call that the field `at` names
	at      string // a call with its number among the calls of the same name: "fdatasync ledger.db 2"

	mu    sync.Mutex
	calls []string // the calls so far, in the form of the field `at`
	count map[string]int
	hit   string // the call at which the fault happened
}

// everyOne is the number of calls of the same name that are each a point. After them, as in the 256
// calls for the spare files of a first start, only the 16th, 32nd, ... call is a point.
const everyOne = 8

// judge decides about a call.
func (p *plan) judge(c killer.Call) killer.Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	fails := p.verdict.Do == killer.Fail
	if fails != (c.Netlink && fails) || c.Answer && !fails {
		return killer.Verdict{}
	}
	if p.count == nil {
		p.count = map[string]int{}
	}
	p.count[c.String()]++
	if k := p.count[c.String()]; k > everyOne && k&(k-1) != 0 {
		return killer.Verdict{}
	}
	name := fmt.Sprintf("%s %d", c, p.count[c.String()])
	p.calls = append(p.calls, name)
	if p.hit != "" || len(p.calls) != p.n && name != p.at {
		return killer.Verdict{}
	}
	p.hit = name
	return p.verdict
}

// went returns the call at which the fault happened, "" if no fault happened, and all calls that
// there were.
func (p *plan) went() (hit string, calls []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hit, p.calls
}

func (p *plan) String() string {
	if p.at != "" {
		return fmt.Sprintf("%s %s", p.verdict, p.at)
	}
	return fmt.Sprintf("%s call %d (%s)", p.verdict, p.n, p.hit)
}

// kills are the verdicts that every call gets, one after the other.
var kills = []killer.Verdict{{Do: killer.KillBefore}, {Do: killer.KillAfter}}

// failures are the verdicts that every request to the kernel, and every fetching of an
// answer, gets one after the other.
var failures = []killer.Verdict{
	{Do: killer.Fail, Errno: unix.ENOBUFS}, {Do: killer.Fail, Errno: unix.ENOMEM},
	{Do: killer.Fail, Errno: unix.EBUSY}, {Do: killer.Fail, Errno: unix.EINTR},
}
