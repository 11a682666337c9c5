package rtnl

import (
	"bytes"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Parsers do not panic, whatever bytes the kernel sends.
func FuzzParse(f *testing.F) {
	f.Add([]byte{}, uint16(0))
	for _, r := range []Request{
		SetLink("lo", Up(), Alias("a"), NoAddrGen()),
		AddRoute(Route{Unreachable: true}),
		DelGroup(7),
	} {
		f.Add(r.body, uint16(unix.NLM_F_ACK_TLVS))
		f.Add(r.body[:len(r.body)-3], uint16(0))
	}
	f.Fuzz(func(t *testing.T, b []byte, flags uint16) {
		parseLink(b)
		parseRoute(b)
		if d, is, err := parseDefault(b); is && err == nil {
			AddDefault(d.In(7))
		}
		parseNeighbour(b)
		parseUplinks(b)
		parseWay(b)
		parseMacvlan(b)
		parseBridge(b)
		parsePort(b)
		parsePortMAC(b)
		parseVLANs(b)
		for _, typ := range []uint16{unix.NLMSG_ERROR, unix.NLMSG_DONE} {
			parseError(syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: typ, Flags: flags}, Data: b})
		}
		local, state := false, ""
		for _, r := range []Request{
			GetLink("lo", new(Link)), IsLocal(Route{}.Gateway, &local), Carries("lo", &local), NeighbourState(Route{}.Gateway, 1, &state),
		} {
			r.answer(b)
		}
	})
}

// The messages about VLANs are those that iproute2 6.1 sends (strace), because not every kernel can filter VLANs:
//
//	ip link add br4 type bridge vlan_filtering 1 vlan_default_pvid 20
//	bridge vlan add dev 4 vid 20 pvid untagged
//	bridge vlan del dev 4 vid 20
//
// The bytes are those of a little-endian machine.
func TestVLANMessages(t *testing.T) {
	port := make([]byte, unix.SizeofIfInfomsg)
	port[0], port[4] = unix.AF_BRIDGE, 4
	with := func(attrs ...byte) []byte { return append(slices.Clone(port), attrs...) }
	vlan := VLAN{ID: 20, PVID: true, Untagged: true}
	for _, m := range []struct {
		r    Request
		typ  uint16
		want []byte
	}{
		{SetPortVLAN(4, vlan), unix.RTM_SETLINK, with(12, 0, unix.IFLA_AF_SPEC, 0, 8, 0, 2, 0, 6, 0, 20, 0)},
		{DelPortVLAN(4, vlan), unix.RTM_DELLINK, with(12, 0, unix.IFLA_AF_SPEC, 0, 8, 0, 2, 0, 0, 0, 20, 0)},
	} {
		if m.r.typ != m.typ || !bytes.Equal(m.r.body, m.want) {
			t.Errorf("%s is %d % x, not %d % x", m.r, m.r.typ, m.r.body, m.typ, m.want)
		}
	}
	info := within(AddBridge(Bridge{Name: "br4", VLANFiltering: true, PVID: 20}).body[unix.SizeofIfInfomsg:], unix.IFLA_LINKINFO)
	data := within(info, unix.IFLA_INFO_DATA)
	if !isSet(within(data, 7)) || uint16Of(within(data, 39)) != 20 { // IFLA_BR_VLAN_FILTERING, IFLA_BR_VLAN_DEFAULT_PVID
		t.Errorf("the bridge's attributes are % x", data)
	}
}

// A port's VLANs, and a VLAN's MAC, are those of a message of Linux 6.1, of a little-endian machine, after
//
//	bridge vlan add dev 4 vid 20-21
//	bridge fdb add 02:00:00:00:01:00 dev 4 master static sticky vlan 20
func TestParseVLANs(t *testing.T) {
	port := []byte{unix.AF_BRIDGE, 0, 0, 0, 4, 0, 0, 0}
	rest := []byte{5, 0, 3, 0, 3, 0, 0, 0, 5, 0, 6, 0, 1, 0, 0, 0} // of an entry: the port's state, and that of multicast
	usual := slices.Concat([]byte{28, 0, 1, 128, 8, 0, 1, 0, 6, 0, 1, 0}, rest)
	tagged := slices.Concat([]byte{36, 0, 1, 128, 8, 0, 1, 0, 0, 0, 20, 0, 6, 0, 2, 0, 21, 0, 0, 0}, rest)
	got, err := parseVLANs(slices.Concat(port, usual, tagged))
	if want := []VLAN{{ID: 1, PVID: true, Untagged: true}, {ID: 20}, {ID: 21}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("the VLANs are %v, not %v: %v", got, want, err)
	}
	mac := make([]byte, unix.SizeofNdMsg)
	mac[0], mac[4], mac[8], mac[10] = unix.AF_BRIDGE, 4, unix.NUD_NOARP, ntfSticky
	mac = append(mac, 10, 0, unix.NDA_LLADDR, 0, 2, 0, 0, 0, 1, 0, 0, 0, 6, 0, unix.NDA_VLAN, 0, 20, 0, 0, 0)
	p, err := parsePortMAC(mac)
	if want := (PortMAC{MAC: "02:00:00:00:01:00", VLAN: 20, Index: 4, Static: true, Sticky: true}); err != nil || p != want {
		t.Errorf("the MAC is %+v, not %+v: %v", p, want, err)
	}
}

func TestAtLeast(t *testing.T) {
	for release, want := range map[string]bool{
		"6.15.0": true, "6.18.44-fc-v657": true, "7.0-rc1": true, "6.14.9": false, "5.19.0-46-generic": false, "": false, "6": false,
	} {
		if got := atLeast(release, 6, 15); got != want {
			t.Errorf("%q is at least 6.15: %t", release, got)
		}
	}
}
