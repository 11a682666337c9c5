package mode

import (
	"fmt"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// shares is how many bursts of the greatest size a rate sends in a second: the greatest burst is what
// the rate sends in 100 ms.
const shares = 10

// Shape returns a limit as the kernel has it, in bytes, on a link with an MTU. The limit's burst is at
// most what the rate sends in 100 ms, or one packet: a pod that sets its interface down and up has the
// kernel fill the bucket again, up to some 50 times a second. With the burst of half a gigabyte for which
// kubelets ask, such a pod would have no limit.
func Shape(r netconf.Rate, mtu int) rtnl.Rate {
	rate := r.Rate / 8
	return rtnl.Rate{Rate: rate, Burst: uint32(min(r.Burst/8, max(rate/shares, leastBurst(mtu))))}
}

// leastBurst is the burst below which a packet of an MTU could never be sent.
func leastBurst(mtu int) uint64 { return uint64(mtu + rtnl.HeaderLen) }

// FitBandwidth refuses limits whose burst is less than a packet of an MTU: such a packet could
// never be sent.
func FitBandwidth(b netconf.Bandwidth, mtu int) error {
	least := leastBurst(mtu)
	for _, l := range []struct {
		way  string
		rate netconf.Rate
	}{{"ingress", b.Ingress}, {"egress", b.Egress}} {
		if l.rate.Rate > 0 && l.rate.Burst/8 < least {
			return cni.Errorf(cni.CodeConfig, "invalid configuration: runtimeConfig.bandwidth",
				"%sBurst is %d bits; a packet of MTU %d needs %d or more", l.way, l.rate.Burst, mtu, least*8)
		}
	}
	return nil
}

// OtherBandwidth says which limit of an attachment differs from the configuration's, and what the
// configuration asks for; "" if no limit differs. A limit that the configuration does not name is
// not compared.
func OtherBandwidth(has attachment.Interface, b netconf.Bandwidth) string {
	for _, l := range []struct {
		way   string
		has   rtnl.Rate
		asked netconf.Rate
	}{{"ingress", has.Ingress, b.Ingress}, {"egress", has.Egress, b.Egress}} {
		if asked := Shape(l.asked, has.MTU); l.asked.Rate > 0 && asked != l.has {
			return fmt.Sprintf("%s of %s, but this ADD asks for %s", l.way, l.has, asked)
		}
	}
	return ""
}
