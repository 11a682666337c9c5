package agent

import "fmt"

// forwarding lets the node route between its pods and the world, for the
// families that the pools have (`sysctl net.ipv4.ip_forward=1`,
// `net.ipv6.conf.all.forwarding=1`). It stays so when the agent goes: others
// may rely on it by then.
func (a *Agent) forwarding() error {
	c := a.config.Load()
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
		if err := a.sysctl(name, "1"); err != nil {
			return fmt.Errorf("turning on forwarding (or say forwarding: false): %w", err)
		}
	}
	return nil
}
