package ground

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/berth-net/berth/api"
)

// hearRouters sees to it that the node, once it forwards IPv6, hears the routers that it has heard
// until then, and no others (`sysctl net.ipv6.conf.LINK.accept_ra=2`). A link with accept_ra 1
// takes router advertisements only while it does not forward: the kernel would drop the default
// routes that came by them as soon as it turns forwarding on, and let the addresses run out. Links
// that are made later have the sysctls of `default`, which hears or does not hear like a link.
// If a program such as systemd-networkd reads advertisements, accept_ra is 0 and stays 0.
//
// accept_ra stays when the agent goes, as forwarding does. Without forwarding, 2 means the same as 1.
func (g *Ground) hearRouters() error {
	names, err := g.node.Hearing()
	if err != nil {
		return err
	}
	if !g.forwardingIsOn("ipv6/conf/default/forwarding") {
		names = append(names, "default")
	}
	var set []string
	for _, name := range names {
		sysctl := "ipv6/conf/" + name + "/accept_ra"
		// Somebody may have set the sysctl since the links were listed, as a plugin does for its new link.
		if value, err := g.node.Sysctl(sysctl); err != nil || value != "1" {
			continue
		}
		if err := g.node.SetSysctl(sysctl, "2"); errors.Is(err, fs.ErrNotExist) { // the link is gone
			continue
		} else if err != nil {
			return fmt.Errorf("keeping the routes that %s has from routers: %w", name, err)
		}
		set = append(set, name)
	}
	if len(set) == 0 {
		return nil
	}
	g.Log.Info("the node goes on to take router advertisements when it forwards IPv6: the agent has set accept_ra to 2", "links", set)
	g.tell(api.EventSet, fmt.Errorf("net.ipv6.conf.*.accept_ra is 2 now, for %s, so that the node goes on to take router advertisements when it forwards", strings.Join(set, ", ")))
	return nil
}
