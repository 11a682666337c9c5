package main

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/test/crash/killer"
)

// plan is one fault: what becomes of one call of a verb.
type plan struct {
	verdict killer.Verdict
	n       int    // the nth call of the verb, from 1; 0: that of at
	at      string // a call and its number among those of its name: "fdatasync ledger.db 2"

	mu    sync.Mutex
	calls []string // so far, numbered likewise
	count map[string]int
	hit   string // the call at which it happened
}

// everyOne is up to which number each call of its like is a point; of those
// beyond, such as the 256 spare files of a first start, the 16th, 32nd, ... are.
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

// went says at which call the fault happened, "" if at none, and which calls
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

// kills are the verdicts that every call gets.
var kills = []killer.Verdict{{Do: killer.KillBefore}, {Do: killer.KillAfter}}

// failures are those that every request to the kernel gets, and every answer.
var failures = []killer.Verdict{
	{Do: killer.Fail, Errno: unix.ENOBUFS}, {Do: killer.Fail, Errno: unix.ENOMEM},
	{Do: killer.Fail, Errno: unix.EBUSY}, {Do: killer.Fail, Errno: unix.EINTR},
}
