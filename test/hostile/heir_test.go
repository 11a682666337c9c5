package hostile

import (
	"net"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
)

// A pod dies while a program of the node has something to say to the pod by TCP. The kernel would go
// on sending that for a quarter of an hour, and the address rests only for a minute. The program
// is told that the connection is over, and the address's next owner hears nothing.
func TestHeirHearsNothingForTheDead(t *testing.T) {
	n := newNode(t, "cooldown: 2s\n"+plain+"- {name: one, cidrs: [10.99.0.7/32]}\n")
	dead, err := n.tryAdd("dead", `"pool":"one"`)
	must(t, err)
	l, err := net.Listen("tcp", net.JoinHostPort(node4.String(), "0"))
	must(t, err)
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	must(t, dead.at.Do(func() error { _, err := net.Dial("tcp", l.Addr().String()); return err }))
	says := <-accepted
	defer says.Close()
	n.del(dead, wait)
	if _, err := says.Write([]byte("for the dead pod")); err == nil {
		t.Error("the node's program is not told that its connection is over")
	}
	var heir *pod
	nettest.Eventually(t, "the address to have rested", func() bool {
		heir, err = n.tryAdd("heir", `"pool":"one"`)
		return err == nil
	})
	if heir.ip4 != dead.ip4 {
		t.Fatalf("the heir has %s, not %s", heir.ip4, dead.ip4)
	}
	heard := listen(t, heir.at)
	time.Sleep(10 * time.Second) // the kernel tries after 0.2 s, and then each time after twice as long
	if s := heard.all(func(s seen) bool { return s.src == node4 && s.proto == tcp }); len(s) > 0 {
		t.Errorf("the heir hears %s", s[0])
	}
}
