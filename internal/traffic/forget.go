package traffic

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// forgetting is a pass over connection tracking for the addresses of claims that wait for it. One pass serves all claims
// that come while another pass is under way: many pods may come at once, and each pass goes over the whole table.
type forgetting struct {
	addrs       []netip.Addr
	begun, done chan struct{}
	err         error // once done is closed

	mu   sync.Mutex
	left map[netip.Addr]bool // addresses of claims that have gone on without the pass
}

// forgettings are the pass that begins next, and whether one is under way.
type forgettings struct {
	mu      sync.Mutex
	next    *forgetting
	running bool
}

var errSlow = errors.New("connection tracking does not answer in time")

// forget has the kernel forget the connections of addresses. It waits for claimLimit until the pass begins, and as long
// until the pass ends. If that is too long, the pass deletes nothing of these addresses any more.
func (t *Traffic) forget(addrs []netip.Addr) error {
	f, first := t.forgettings.join(addrs)
	if first {
		go t.forgetAll()
	}
	for _, step := range []<-chan struct{}{f.begun, f.done} {
		timer := time.NewTimer(claimLimit)
		select {
		case <-step:
			timer.Stop()
		case <-timer.C:
			t.forgettings.leave(f, addrs)
			return errSlow
		}
	}
	return f.err
}

// join adds addresses to the pass that begins next. first says that none is under way.
func (fs *forgettings) join(addrs []netip.Addr) (f *forgetting, first bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.next == nil {
		fs.next = &forgetting{begun: make(chan struct{}), done: make(chan struct{}), left: map[netip.Addr]bool{}}
	}
	fs.next.addrs = append(fs.next.addrs, addrs...)
	first, fs.running = !fs.running, true
	return fs.next, first
}

// leave takes addresses out of a pass.
func (fs *forgettings) leave(f *forgetting, addrs []netip.Addr) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.next == f { // the pass has not begun, and may never begin
		f.addrs = slices.DeleteFunc(f.addrs, func(a netip.Addr) bool { return slices.Contains(addrs, a) })
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range addrs {
		f.left[a] = true
	}
}

// begin returns the next pass; nil: nobody waits for one, and none is under way any more.
func (fs *forgettings) begin() *forgetting {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.next
	fs.next, fs.running = nil, f != nil
	return f
}

// forgetAll does one pass after the other until nobody waits for one.
func (t *Traffic) forgetAll() {
	for f := t.forgettings.begin(); f != nil; f = t.forgettings.begin() {
		close(f.begun)
		f.err = t.node.Tracked.ForgetUnless(f.addrs, func(a netip.Addr) bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.left[a]
		})
		close(f.done)
	}
}
