package shaping

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// Policer limits what links let in, for kinds of links. A kernel that has no BPF programs, or does not let the agent load them, as in
// a user namespace, can limit none; then somebody is told, once.
type Policer struct {
	conn      *rtnl.Conn
	unpoliced func(error)
	asked     sync.Once   // for the question whether the kernel can limit what links let in
	lawless   atomic.Bool // the kernel cannot
}

// NewPolicer returns a Policer, which calls unpoliced once, with the reason, if the kernel can limit no link. unpoliced must not
// block; nil: nobody is told.
func NewPolicer(conn *rtnl.Conn, unpoliced func(error)) *Policer {
	if unpoliced == nil {
		unpoliced = func(error) {}
	}
	return &Policer{conn: conn, unpoliced: unpoliced}
}

// Polices reports whether the kernel can limit what links let in. Polices asks the kernel once in the
// agent's life; if the kernel cannot, the next agent asks again.
func (p *Policer) Polices() bool {
	p.Ask(rtnl.CanPolice)
	return !p.lawless.Load()
}

// Ask goes by what can says of the kernel, unless somebody has asked before.
func (p *Policer) Ask(can func() error) { p.asked.Do(func() { p.refused(can()) }) }

// Police limits what a link lets in (rtnl.Conn.Police), if the kernel can do it.
func (p *Policer) Police(index int, r rtnl.Rate, mtu int, spent bool) error {
	if !p.Polices() {
		return nil
	}
	err := p.conn.Police(index, r, mtu, spent)
	if p.refused(err) {
		return nil
	}
	return err
}

// refused reports whether err says that the kernel can limit no link. It calls unpoliced the first
// time.
func (p *Policer) refused(err error) bool {
	if !errors.Is(err, kernel.ErrUnsupported) && !errors.Is(err, kernel.ErrPermission) {
		return false
	}
	if !p.lawless.Swap(true) {
		p.unpoliced(err)
	}
	return true
}

// LetsIn says what a node's end of a link lets in.
func LetsIn(r rtnl.Rate) string {
	if r == (rtnl.Rate{}) {
		return "all that the pod sends"
	}
	return r.String()
}
