package rtnl

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

// A Conn does not take an answer to something else for the answer to its request, and does not use the
// socket of that answer again.
func TestDesync(t *testing.T) {
	nettest.Need(t)
	for name, ask := range map[string]func(c *Conn) error{
		"request": func(c *Conn) error { return c.Do(GetLink("lo", new(Link))) },
		"list":    func(c *Conn) error { _, err := c.Neighbours(); return err },
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Open(nil)
			nettest.Must(t, err)
			defer c.Close()
			s := <-c.slots
			stray := GetLink("none", new(Link)) // nobody waits for its answer
			nettest.Must(t, s.Send(s.append(nil, stray, unix.NLM_F_ACK)))
			c.slots <- s
			failed := 0
			for range maxSockets { // ask uses each socket once
				if err := ask(c); errors.Is(err, errDesync) {
					failed++
				} else if err != nil {
					t.Error(err)
				}
			}
			if failed != 1 {
				t.Errorf("%d sockets of %d were out of order, not 1", failed, maxSockets)
			}
			for range maxSockets {
				if err := ask(c); err != nil {
					t.Errorf("afterwards: %v", err)
				}
			}
		})
	}
}
