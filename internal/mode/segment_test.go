package mode_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/berth-net/berth/internal/mode"
)

// A MAC follows from the address whose MAC other hosts remember for longest, and is one that a host may choose.
func TestSegmentMAC(t *testing.T) {
	of := func(texts ...string) string {
		var addrs []netip.Addr
		for _, text := range texts {
			addrs = append(addrs, netip.MustParseAddr(text))
		}
		return mode.SegmentMAC(addrs)
	}
	both := of("192.168.1.9", "fd00::9")
	if both != of("192.168.1.10", "fd00::9") || both == of("192.168.1.9", "fd00::10") {
		t.Error("with IPv6 the MAC does not follow from that address alone")
	}
	if of("192.168.1.9") == of("192.168.1.10") || of("192.168.1.9") != "36:5f:61:2c:a9:49" {
		t.Error("without IPv6 the MAC does not follow from the address")
	}
	for _, text := range []string{both, of("192.168.1.9"), of("192.168.1.10"), of("fd00::10")} {
		mac, err := net.ParseMAC(text)
		if err != nil || mac[0]&3 != 2 || mac.String() != text {
			t.Errorf("%s is no unicast address that is administered locally: %v", text, err)
		}
	}
}
