package oracle

import (
	"fmt"
	"strings"

	nft "github.com/google/nftables"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// devicesOf returns the devices on which a table's chains are, which package nft does not read, by chain.
func devicesOf(t *nft.Table) (map[string][]string, error) {
	if t.Family != nft.TableFamilyNetdev && t.Family != nft.TableFamilyINet {
		return nil, nil
	}
	all, err := dump(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, []byte{byte(t.Family), 0, 0, 0}, sizeofNfgenmsg)
	if err != nil {
		return nil, fmt.Errorf("listing chains: %w", err)
	}
	devices := map[string][]string{}
	for _, d := range all {
		hook, err := attributes(d.attrs[unix.NFTA_CHAIN_HOOK])
		if err != nil || text(d.attrs[unix.NFTA_CHAIN_TABLE]) != t.Name {
			continue
		}
		name := text(d.attrs[unix.NFTA_CHAIN_NAME])
		if dev := hook[hookDevice]; dev != nil {
			devices[name] = append(devices[name], text(dev))
			continue
		}
		several, err := nl.ParseRouteAttr(hook[hookDevices])
		if err != nil {
			return nil, fmt.Errorf("listing chains: %w", err)
		}
		for _, one := range several {
			devices[name] = append(devices[name], text(one.Value))
		}
	}
	return devices, nil
}

// Attributes of a chain's hook: the device, or several (linux/netfilter/nf_tables.h).
const (
	hookDevice  = 3
	hookDevices = 4
)

// hookName returns the name of an NF_ hook in a family.
func hookName(family nft.TableFamily, hook uint32) string {
	names := []string{"prerouting", "input", "forward", "output", "postrouting", "ingress"}
	switch family {
	case nft.TableFamilyNetdev:
		names = []string{"ingress", "egress"}
	case nft.TableFamilyARP:
		names = []string{"input", "output", "forward"}
	}
	if int(hook) < len(names) {
		return names[hook]
	}
	return fmt.Sprint(hook)
}

// chainHead tells a chain: `forward { type filter hook forward priority 0; policy accept; }`, with the priority as a number, as nft(8) does with -y.
func chainHead(c *nft.Chain, devices []string) string {
	if c.Hooknum == nil {
		return c.Name
	}
	text := fmt.Sprintf("%s { type %s hook %s", c.Name, c.Type, hookName(c.Table.Family, uint32(*c.Hooknum)))
	switch len(devices) {
	case 0:
	case 1:
		text += fmt.Sprintf(" device %q", devices[0])
	default:
		text += fmt.Sprintf(" devices = { %s }", strings.Join(devices, ", "))
	}
	if c.Priority != nil {
		text += fmt.Sprintf(" priority %d;", *c.Priority)
	}
	if c.Policy != nil {
		policies := map[nft.ChainPolicy]string{nft.ChainPolicyAccept: "accept", nft.ChainPolicyDrop: "drop"}
		text += fmt.Sprintf(" policy %s;", policies[*c.Policy])
	}
	return text + " }"
}
