package netconf

import (
	"strconv"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
)

// Bandwidth is how fast a pod may be reached (Ingress), and how fast it may send (Egress).
type Bandwidth struct{ Ingress, Egress Rate }

// Rate is a limit, and how many bits may exceed the limit at once. The zero Rate limits nothing.
type Rate struct {
	Rate  uint64 // bits a second; at least minRate
	Burst uint64 // bits; at most maxBurst
}

// The kernel counts bytes: at least one a second, and less than 4 GiB at once.
const (
	minRate  = 8
	maxBurst = (1<<32 - 1) * 8
)

// ParseBandwidth reads limits of bandwidth (CNI conventions, "bandwidth"), which a key has. The limits'
// own keys may be in any case, because containerd writes IngressRate where others write ingressRate.
func ParseBandwidth(key string, value []byte) (b Bandwidth, e *api.Error) {
	fields, err := scan.Object(value)
	if err != nil {
		return b, cni.ConfigError(key, value, "an object")
	}
	for _, f := range fields {
		switch limit := strings.ToLower(f.Key); {
		case scan.IsNull(f.Value):
		case limit == "ingressrate":
			b.Ingress.Rate, e = bits(key, f, minRate, 1<<63-1)
		case limit == "ingressburst":
			b.Ingress.Burst, e = bits(key, f, 0, maxBurst)
		case limit == "egressrate":
			b.Egress.Rate, e = bits(key, f, minRate, 1<<63-1)
		case limit == "egressburst":
			b.Egress.Burst, e = bits(key, f, 0, maxBurst)
		case !empty(f.Value):
			e = cni.FieldError(key+"."+f.Key, f.Value, "bandwidth has ingressRate, ingressBurst, egressRate and egressBurst")
		}
		if e != nil {
			return b, e
		}
	}
	if e := b.Ingress.whole(key, "ingress"); e != nil {
		return b, e
	}
	return b, b.Egress.whole(key, "egress")
}

// bits reads a number of bits in given bounds, or 0.
func bits(key string, f scan.Field, least, most uint64) (uint64, *api.Error) {
	n, err := strconv.ParseUint(string(f.Value), 10, 64)
	if err != nil || n != 0 && (n < least || n > most) {
		expected := "whole bits, 0 or from " + strconv.FormatUint(max(least, 1), 10) + " to " + strconv.FormatUint(most, 10)
		return 0, cni.ConfigError(key+"."+f.Key, f.Value, expected)
	}
	return n, nil
}

// whole refuses a rate without a burst, and a burst without a rate.
func (r Rate) whole(key, way string) *api.Error {
	switch {
	case r.Rate > 0 && r.Burst == 0:
		return cni.MissingError(key+"."+way+"Burst", "the bits that may exceed "+way+"Rate at once")
	case r.Rate == 0 && r.Burst > 0:
		return cni.MissingError(key+"."+way+"Rate", "bits a second, since there is a "+way+"Burst")
	}
	return nil
}
