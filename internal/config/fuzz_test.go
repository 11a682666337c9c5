package config

import (
	"fmt"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/ipam"
)

// Whatever a file has, Load refuses it or returns a configuration of which pools can be
// made.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte(onePool))
	f.Add([]byte("pools: &a [{name: a, cidrs: [::/0, 1.2.3.4/0]}]\ncooldown: 1h\nmetrics: '[::1%lo]:1'"))
	f.Add([]byte("<<: {mtu: 3}\npools: !!binary aGk="))
	f.Add([]byte("pools: [{name: lan, cidrs: [192.168.1.192/26, 'fd00:1::40/124'], segment: {subnets: [192.168.1.0/24, 'fd00:1::/64'], gateways: [192.168.1.1]}}]"))
	f.Add([]byte("--- {}\n---\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, cooldown, err := parse(text)
		if err != nil {
			return
		}
		if cooldown <= 0 || c.SweepInterval <= 0 {
			t.Errorf("cooldown %s, sweepInterval %s", cooldown, c.SweepInterval)
		}
		if len(c.Pools) == 0 {
			return
		}
		p, err := ipam.New(c.Pools)
		if err != nil {
			t.Fatalf("%+v: %v", c.Pools, err)
		}
		for _, pool := range c.Pools {
			if got, err := p.Claim(pool.Name, time.Time{}); err != nil || len(got.Addrs()) == 0 {
				t.Errorf("%+v: %v, %v", pool, got, err)
			}
		}
	})
}

// What ParsePool accepts is a valid pool, and reads the same when it is written out.
func FuzzPoolFlag(f *testing.F) {
	for _, s := range []string{"default=10.88.0.0/16,fd00:88::/64", "a=", "=", "a=1.2.3.4/32", "a=::ffff:1.2.3.0/120", "a==1.2.3.0/24", "a=FD00::/64"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePool(s)
		if err != nil {
			return
		}
		out := p.Name + "="
		for i, c := range p.CIDRs {
			if i > 0 {
				out += ","
			}
			out += c.String()
		}
		again, err := ParsePool(out)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(p) {
			t.Errorf("%q is %v, written out %q, which is %v, %v", s, p, out, again, err)
		}
	})
}
