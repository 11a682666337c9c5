package rtnl

import (
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
		parseNeighbour(b)
		parseUplinks(b)
		parseWay(b)
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

func TestAtLeast(t *testing.T) {
	for release, want := range map[string]bool{
		"6.15.0": true, "6.18.44-fc-v657": true, "7.0-rc1": true, "6.14.9": false, "5.19.0-46-generic": false, "": false, "6": false,
	} {
		if got := atLeast(release, 6, 15); got != want {
			t.Errorf("%q is at least 6.15: %t", release, got)
		}
	}
}
