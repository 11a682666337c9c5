package ground

import (
	"context"
	"fmt"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/hold"
)

// ForwardingKind is what events and metrics call the node's forwarding, which no owner holds.
const ForwardingKind = "forwarding"

// forwarding6 is the sysctl that lets the kernel forward IPv6 from all links. Setting it also sets
// the sysctl of each link, and the sysctl of links to come (default).
const forwarding6 = "ipv6/conf/all/forwarding"

// Forwards reports whether the agent sees to it that the node forwards what pods send.
func (g *Ground) Forwards() bool { return g.config.Load().Forwarding }

// Forward turns the node's forwarding on again, after somebody has switched it off.
func (g *Ground) Forward(context.Context) {
	if err := g.forwarding(); err != nil {
		g.Log.Warn("somebody switched off forwarding, and the agent could not turn it on again", "err", err)
	}
}

// forwarding lets the node route between its pods and the world, for the IP families of the
// pools (`sysctl net.ipv4.ip_forward=1`, `net.ipv6.conf.all.forwarding=1`). The kernel then
// forwards from all links. Forwarding stays on when the agent goes, because others may rely on
// it by then. If forwarding is off though the agent has seen it on, somebody has switched it off.
func (g *Ground) forwarding() error {
	g.forwardTurn.Lock()
	defer g.forwardTurn.Unlock()
	for _, name := range g.forwardingNames() {
		if g.forwardingIsOn(name) {
			g.forwarded[name] = true
			continue
		}
		was := fmt.Errorf("net.%s was switched off", strings.ReplaceAll(name, "/", "."))
		if g.forwarded[name] {
			g.tell(api.EventDrift, was)
		}
		var err error
		if name == forwarding6 {
			err = g.hearRouters()
		}
		if err == nil {
			err = g.node.SetSysctl(name, "1")
		}
		if err != nil {
			return fmt.Errorf("turning on forwarding (forwarding: false leaves it alone): %w", err)
		}
		if g.forwarded[name] {
			g.Log.Warn("somebody switched off forwarding, and the agent turned it on again: pods could reach nobody beyond the node meanwhile", "was", was)
			g.Meter.Repaired(ForwardingKind)
			g.tell(api.EventMended, was)
		}
		g.forwarded[name] = true
	}
	return nil
}

// forwardingNames returns the sysctls that let the node forward what pods send.
func (g *Ground) forwardingNames() (names []string) {
	if !g.Forwards() {
		return nil
	}
	v4, v6 := false, false
	for _, p := range routedPrefixes(g.config.Load().Pools) {
		v4, v6 = v4 || p.Addr().Is4(), v6 || p.Addr().Is6()
	}
	if v4 {
		names = append(names, "ipv4/ip_forward")
	}
	if v6 {
		names = append(names, forwarding6)
	}
	return names
}

// forwardingIsOn reports whether a sysctl is on. A sysctl that cannot be read counts as off.
func (g *Ground) forwardingIsOn(name string) bool {
	value, err := g.node.Sysctl(name)
	return err == nil && value != "0"
}

// ForwardFindings returns an audit's findings about forwarding that is off.
func (g *Ground) ForwardFindings() (findings []api.Finding) {
	for _, name := range g.forwardingNames() {
		if !g.forwardingIsOn(name) {
			findings = append(findings, api.Finding{
				Type: api.FindingChanged, Kind: ForwardingKind, Of: "node", What: "net." + strings.ReplaceAll(name, "/", "."),
				Detail: "off: pods reach nobody beyond the node",
			})
		}
	}
	return findings
}

// tell publishes an event about the node's forwarding, as an event of the owner of the agent's table.
func (g *Ground) tell(typ string, err error) {
	var o hold.Owner
	if id, held := g.Ledger.Holder(TableName); held {
		o, _ = g.Ledger.Owner(id)
	}
	g.Hooks.Tell(typ, o, ForwardingKind, err)
}
