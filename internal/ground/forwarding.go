package ground

import "fmt"

// forwarding lets the node route between its pods and the world, for the IP families of the
// pools (`sysctl net.ipv4.ip_forward=1`, `net.ipv6.conf.all.forwarding=1`). Forwarding
// stays on when the agent goes, because others may rely on it by then.
func (g *Ground) forwarding() error {
	c := g.config.Load()
	if !c.Forwarding {
		return nil
	}
	sysctls := map[string]bool{}
	for _, p := range prefixes(c.Pools) {
		if p.Addr().Is4() {
			sysctls["ipv4/ip_forward"] = true
		} else {
			sysctls["ipv6/conf/all/forwarding"] = true
		}
	}
	for name := range sysctls {
		if err := g.node.SetSysctl(name, "1"); err != nil {
			return fmt.Errorf("turning on forwarding (forwarding: false leaves it alone): %w", err)
		}
	}
	return nil
}
