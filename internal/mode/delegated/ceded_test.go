package delegated

import (
	"testing"

	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/delegate"
	"github.com/berth-net/berth/internal/nettest"
)

// Plugins hear of no default route that another network has by now; the ledger's result stays as it is.
func TestWithout(t *testing.T) {
	const has = `{"cniVersion":"0.4.0","routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"},{"dst":"::/0","gw":"fd00::1"},{"dst":"10.0.0.0/8"}],"dns":{}}`
	for _, test := range []struct {
		ceded rtnl.Families
		want  []string
	}{
		{rtnl.Families{}, []string{"0.0.0.0/0", "::/0", "10.0.0.0/8"}},
		{rtnl.Families{IPv4: true}, []string{"::/0", "10.0.0.0/8"}},
		{rtnl.Families{IPv6: true}, []string{"0.0.0.0/0", "10.0.0.0/8"}},
		{rtnl.Families{IPv4: true, IPv6: true}, []string{"10.0.0.0/8"}},
	} {
		s := &delegate.Spec{Version: "0.4.0", Result: has}
		less, err := without(s, test.ceded)
		nettest.Must(t, err)
		r, err := less.Parsed()
		nettest.Must(t, err)
		var got []string
		for _, route := range r.Routes {
			got = append(got, route.Dst.String())
		}
		if len(got) != len(test.want) {
			t.Fatalf("%+v ceded: %q, want %q", test.ceded, got, test.want)
		}
		for i := range got {
			if got[i] != test.want[i] {
				t.Errorf("%+v ceded: %q, want %q", test.ceded, got, test.want)
			}
		}
		if s.Result != has {
			t.Errorf("the spec has become %s", s.Result)
		}
	}
}
