package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// portMapping is what the runtime says of a port of the node.
type portMapping struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
}

// table is the table of a lease's mapped ports.
func (l *lease) table() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyIPv4, Name: "planted-" + l.Link}
}

// portsFree returns an error if another pod has a port that the call asks for. It does not look at
// hostIP: the same port of another address of the node counts as taken, too.
func (c *call) portsFree() error {
	if c.fault("port-taken") {
		return nil
	}
	all, err := c.leases()
	if err != nil {
		return err
	}
	for _, l := range all {
		for _, theirs := range l.Ports {
			for _, ours := range c.Runtime.PortMappings {
				if ours.HostPort == theirs.HostPort && ours.Protocol == theirs.Protocol {
					return fail(codeTaken, "%s of %s has port %d", l.Ifname, l.ID, ours.HostPort)
				}
			}
		}
	}
	return nil
}

// mapPorts maps the ports of a lease, in a table of their own:
//
//	table ip planted-LINK {
//		chain pre {
//			type nat hook prerouting priority dstnat;
//			fib daddr type local tcp dport PORT dnat to ADDRESS:PORT
//		}
//	}
func (c *call) mapPorts(l *lease) error {
	if len(l.Ports) == 0 {
		return nil
	}
	// sysctl net.ipv4.ip_forward=1
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return fail(codeIO, "forwarding: %w", err)
	}
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	pre := conn.AddChain(&nftables.Chain{
		Name: "pre", Table: conn.AddTable(l.table()), Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	for _, p := range l.Ports {
		conn.AddRule(&nftables.Rule{Table: pre.Table, Chain: pre, Exprs: c.portRule(p, l.Address)})
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("mapping ports: %w", err)
	}
	return nil
}

func (c *call) portRule(p portMapping, pod netip.Addr) (rule []expr.Any) {
	equal := func(data []byte) expr.Any { return &expr.Cmp{Register: 1, Data: data} }
	if !c.fault("port-catches-others") {
		rule = append(rule, &expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true}, equal(binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)))
	}
	if at, err := netip.ParseAddr(p.HostIP); err == nil && !c.fault("port-of-all-addresses") {
		rule = append(rule, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}, equal(at.AsSlice()))
	}
	protocol := map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}[p.Protocol]
	return append(rule,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal([]byte{protocol}),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, equal(binaryutil.BigEndian.PutUint16(p.HostPort)),
		&expr.Immediate{Register: 1, Data: pod.AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(p.ContainerPort)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2})
}

// unmapPorts is `nft delete table ip planted-LINK` and `conntrack -D --reply-src ADDRESS`: without the
// latter, the kernel would still bring the datagrams of a sender that has a flow to the pod's address.
func (c *call) unmapPorts(l *lease) error {
	if len(l.Ports) == 0 {
		return nil
	}
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	conn.DelTable(l.table())
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmapping ports: %w", err)
	}
	if c.fault("port-flows-left") {
		return nil
	}
	var ofPod netlink.ConntrackFilter
	if err := ofPod.AddIP(netlink.ConntrackReplySrcIP, l.Address.AsSlice()); err != nil {
		return err
	}
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.FAMILY_V4, &ofPod); err != nil {
		return fmt.Errorf("forgetting flows: %w", err)
	}
	return nil
}
