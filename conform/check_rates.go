package conform

import (
	"fmt"
	"io"
	"net"
	"time"
)

// rateChecks are about limits of bandwidth. They are made only if a plugin of the list declares the
// capability bandwidth.
var rateChecks = []Check{
	{
		Name: "rates/kept", Level: Own, Spec: "the suite's own: CNI's CONVENTIONS.md, Dynamic Plugin specific fields: bandwidth",
		Says:  "a container receives and sends at the rates that the runtime's bandwidth says, within 10 %",
		Needs: []string{"add/result"}, run: ratesKept,
	},
}

// These are the limits that the check asks for, in bytes. The check sends so much that the burst
// hardly counts.
const (
	ingressRate = 4_000_000 // a second
	egressRate  = 6_000_000 // a second
	rateBurst   = 60_000
	rateTries   = 12
)

// ratesKept sends streams between node and pod, up to rateTries in each direction. No stream may be
// faster than the rate allows. One of the streams has to reach the rate: the others may be slow because
// the machine is busy.
func ratesKept(t *T) {
	t.needCapability("bandwidth")
	a := t.NewAttachment()
	a.Runtime["bandwidth"] = map[string]any{
		"ingressRate": ingressRate * 8, "ingressBurst": rateBurst * 8, "egressRate": egressRate * 8, "egressBurst": rateBurst * 8,
	}
	t.MustAdd(a)
	r := t.mustResult(a)
	addrs := r.addresses(r.of(a))
	if len(addrs) == 0 {
		t.Unsupportedf("the result of ADD lists no address of the pod's interface")
	}
	for _, way := range []struct {
		what string
		rate int
	}{{"gets", ingressRate}, {"sends", egressRate}} {
		var slow time.Duration // the fastest try, if all were too slow
		amount := way.rate / 2
		for range rateTries {
			took, err := t.Node.stream(a.Pod, addrs[0], amount, way.what == "gets")
			if err != nil {
				t.Unsupportedf("the node and the pod cannot stream to each other: %v", err)
			}
			rate := func(bytes int) time.Duration { return time.Duration(bytes) * time.Second / time.Duration(way.rate) }
			if took < rate((amount-rateBurst)*10/11) {
				t.Failf("the pod %s %d bytes in %s, at a rate of %d bytes a second and a burst of %d", way.what, amount, took, way.rate, rateBurst)
				slow = 0
				break
			}
			if took <= rate(amount*10/9) {
				slow = 0
				break
			}
			if slow == 0 || took < slow {
				slow = took
			}
		}
		if slow > 0 {
			t.Failf("the pod %s %d bytes in %s at the fastest of %d tries, at a rate of %d bytes a second", way.what, amount, slow, rateTries, way.rate)
		}
	}
	t.MustDel(a)
}

// stream sends bytes by TCP from the node to a pod's address, or from the pod to the node, and
// returns how long they took. The node begins the connection.
func (n *Node) stream(pod *Pod, addr net.IP, bytes int, toPod bool) (took time.Duration, err error) {
	var listener net.Listener
	if err := pod.Do(func() error {
		listener, err = net.Listen("tcp", net.JoinHostPort(addr.String(), "0"))
		return err
	}); err != nil {
		return 0, err
	}
	defer listener.Close()
	const patience = 30 * time.Second
	var near net.Conn
	if err := n.Do(func() error {
		near, err = net.DialTimeout("tcp", listener.Addr().String(), patience)
		return err
	}); err != nil {
		return 0, err
	}
	defer near.Close()
	far, err := listener.Accept()
	if err != nil {
		return 0, err
	}
	defer far.Close()
	from, to := far, near
	if toPod {
		from, to = near, far
	}
	begun := time.Now()
	for _, c := range []net.Conn{from, to} {
		if err := c.SetDeadline(begun.Add(patience)); err != nil {
			return 0, err
		}
	}
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write(make([]byte, bytes))
		sent <- err
	}()
	_, err = io.CopyN(io.Discard, to, int64(bytes))
	took = time.Since(begun)
	if err != nil {
		near.Close()
		far.Close()
		return 0, fmt.Errorf("%w, and the other end: %w", err, <-sent)
	}
	return took, <-sent
}
