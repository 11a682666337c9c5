package link

import (
	"errors"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

// A link that had another name for a moment has new folders of sysctls. If the former folder lacks an
// optional sysctl, the code does not take it for a sysctl that the kernel lacks.
func TestSysctlsOfLinkRenamedForAMoment(t *testing.T) {
	nettest.Need(t)
	must := func(err error) {
		t.Helper()
		must(t, err)
	}
	node, err := ns.Self()
	must(err)
	defer node.Close()
	conn, err := rtnl.Open(nil)
	must(err)
	defer conn.Close()
	var made rtnl.Link
	must(conn.Do(rtnl.AddVeth(rtnl.End{Name: "moment"}, 0, rtnl.End{Name: "moment-peer"}, node.Fd())))
	must(conn.Do(rtnl.GetLink("moment", &made)))
	defer func() { must(conn.Do(rtnl.DelLinkAt(made.Index))) }()

	c := &confs{conn, made.Name, made.Index, map[string]*ns.Sysctls{}}
	defer c.close()
	optional := sysctl{family: "ipv6", name: "rpl_seg_enabled", want: 1}
	if _, err := c.get(optional); err != nil {
		t.Fatal(err)
	}
	must(conn.Do(rtnl.Rename(made.Index, "other")))
	must(conn.Do(rtnl.Rename(made.Index, "moment")))
	if err := c.setSysctls([]sysctl{optional}); !errors.Is(err, errRenamed) {
		t.Errorf("got %v, want %v", err, errRenamed)
	}
}
