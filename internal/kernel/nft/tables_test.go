package nft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/berth-net/berth/internal/cidrs"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// sample is a ruleset that sets every field.
func sample() Ruleset {
	return Ruleset{
		Instance: "abcdefghij", Owner: "ownerowner",
		CutLow: 1<<30 + 2, CutHigh: 1<<30 + 1023, Live: 1 << 30,
		Blocked: prefixes("169.254.0.0/16", "fd00:ec2::254/128"), Connections: 65536,
		Masquerade: true,
		Pools:      prefixes("10.88.0.0/16", "10.99.0.0/24", "fd88::/64"),
		HostPorts:  true,
		Ports: []Port{
			mapped("tcp", "0.0.0.0:8080", "10.88.0.7:80"), mapped("tcp", "[::]:8080", "[fd88::7]:80"),
			mapped("udp", "192.0.2.1:53", "10.88.0.7:5353"), mapped("sctp", "[2001:db8::1]:1", "[fd88::7]:65535"),
			bound("tcp", "0.0.0.0:9090", "10.99.1.7:80", 1234567), bound("udp", "[::]:53", "[fd99::7]:53", 7), bound("udp", "192.0.2.1:9091", "10.99.1.7:80", NoLink),
			behind("tcp", "0.0.0.0:9092", "10.99.2.7:80", 7, 8), behind("udp", "[::]:9092", "[fd99::8]:80", 7, 9), behind("udp", "0.0.0.0:9093", "10.99.2.8:80", NoLink, 10),
		},
		Excluded:   cidrs.Of(prefixes("192.168.0.0/16", "10.0.0.0/8", "fd00:1::/32", "255.255.255.255/32")...),
		TunnelPort: 4789, Tunnels: cidrs.Of(prefixes("192.0.2.11/32", "192.0.2.12/32", "2001:db8::11/128")...),
	}
}

func mapped(protocol, host, pod string) Port {
	return Port{"portsowner", Mapping{Protocol: protocol, Host: netip.MustParseAddrPort(host), Pod: netip.MustParseAddrPort(pod)}}
}

func bound(protocol, host, pod string, via int) Port {
	p := mapped(protocol, host, pod)
	p.Via = via
	return p
}

// behind returns a port of a pod behind a bridge.
func behind(protocol, host, pod string, via, port int) Port {
	p := bound(protocol, host, pod, via)
	p.BridgePort = port
	return p
}

// many returns some 20 kB of CIDRs. No two of them touch.
func many() []netip.Prefix {
	var list []netip.Prefix
	size := 0
	for i := 0; size < 20_000; i++ {
		p4 := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 7), byte(i << 1), 0}), 24)
		p6 := netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, byte(i >> 7), byte(i << 1)}), 24)
		list = append(list, p4, p6)
		size += len(p4.String()) + len(p6.String()) + 2
	}
	return list
}

// variants are rulesets that differ from sample.
var variants = []struct {
	name string
	edit func(*Ruleset)
}{
	{"everything", func(*Ruleset) {}},
	{"no masquerade", func(r *Ruleset) { r.Masquerade = false }},
	{"no live links", func(r *Ruleset) { r.Live = 0 }},
	{"nothing blocked", func(r *Ruleset) { r.Blocked = nil }},
	{"no limit", func(r *Ruleset) { r.Connections = 0 }},
	{"some ports", func(r *Ruleset) { r.FirstPort, r.LastPort = 20000, 51819 }},
	{"no host ports", func(r *Ruleset) { r.HostPorts = false }},
	{"nobody's host ports", func(r *Ruleset) { r.Ports = nil }},
	{"a small limit", func(r *Ruleset) { r.Connections = 100 }},
	{"nothing but the cut", func(r *Ruleset) { r.Live, r.Masquerade = 0, false }},
	{"no owner", func(r *Ruleset) { r.Owner = "" }},
	{"no pools", func(r *Ruleset) { r.Pools, r.Excluded = nil, cidrs.Set{} }},
	{"one group", func(r *Ruleset) { r.CutHigh = r.CutLow }},
	{"all groups", func(r *Ruleset) { r.CutLow, r.CutHigh = 0, 1<<32-1 }},
	{"the whole internet", func(r *Ruleset) { r.Pools = prefixes("0.0.0.0/0", "::/0") }},
	{"20 kB of CIDRs", func(r *Ruleset) { r.Excluded = cidrs.Of(many()...) }},
}

func wantWhole(t *testing.T, tables *Tables, r Ruleset) {
	t.Helper()
	if _, err := tables.Verify(r); err != nil {
		t.Error(err)
	}
}

func TestReplaceAndVerify(t *testing.T) {
	for _, tt := range variants {
		t.Run(tt.name, func(t *testing.T) {
			at := nettest.Node(t)
			tables := Open(at)
			r := sample()
			tt.edit(&r)
			if _, err := tables.Verify(r); !errors.Is(err, ErrGone) {
				t.Fatalf("before it is written: %v, want ErrGone", err)
			}
			for range 2 { // the second Replace writes over the first table
				must(t, tables.Replace(r))
				wantWhole(t, tables, r)
			}
			owner, there, err := tables.Holder(r.Instance)
			if owner != r.Owner || !there || err != nil {
				t.Errorf("holder is %q, %v, %v", owner, there, err)
			}
			t.Run("nft", func(t *testing.T) { compareWithNft(t, at, r) })
			for range 2 { // the second Delete has nothing to delete
				must(t, tables.Delete(r.Instance))
			}
			if _, there, err := tables.Holder(r.Instance); there || err != nil {
				t.Errorf("after it is deleted: there %v, %v", there, err)
			}
		})
	}
}

// Change turns another ruleset's table, or a table that is no ruleset's, into the wanted table.
func TestChange(t *testing.T) {
	at := nettest.Node(t)
	tables := Open(at)
	last := sample()
	to := func(name string, r Ruleset) {
		if err := tables.Change(last, r); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := tables.Verify(r); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		last = r
	}
	for _, v := range variants {
		r := sample()
		v.edit(&r)
		to(v.name, r)
		if v.name == "nothing but the cut" {
			to("sample", sample())
		}
	}
	nftRun(t, at, "", "add", "chain", "inet", last.Table(), "foreign")
	must(t, tables.Change(last, last))
	if _, err := tables.Verify(last); err != nil {
		t.Errorf("after somebody else's change: %v", err)
	}
}

// compareWithNft lets nft(8) make the ruleset's table from its text, and compares nft's
// listings of both tables. It compares the listings and not the expressions, because not
// every nft expresses a range as Berth does.
func compareWithNft(t *testing.T, at *ns.Netns, r Ruleset) {
	other := nettest.Node(t)
	nftRun(t, other, r.String(), "-f", "-")
	for _, table := range r.table(0).both() {
		ours := nftRun(t, at, "", "list", "table", table.word(), table.name)
		if theirs := nftRun(t, other, "", "list", "table", table.word(), table.name); ours != theirs {
			t.Errorf("nft lists what was written as\n%s\nand what it made of String as\n%s", ours, theirs)
		}
	}
}

func nftRun(t *testing.T, at *ns.Netns, stdin string, args ...string) string {
	t.Helper()
	cmd := nettest.Command(at, nettest.Program(t, "nft"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("nft %s: %v\n%s%s", strings.Join(args, " "), err, &stderr, stdin)
	}
	return string(out)
}

func TestVerifySaysWhatDiffers(t *testing.T) {
	nt := &nftables.Table{Name: sample().Table(), Family: nftables.TableFamilyINet}
	in := &nftables.Chain{Name: "cut_in", Table: nt}
	pools := &nftables.Set{Table: nt, Name: "pools4", KeyType: nftables.TypeIPAddr, Interval: true}
	for _, tt := range []struct {
		want string // "" is ErrGone
		edit func(*nftables.Conn)
	}{
		{"", func(c *nftables.Conn) { c.DelTable(nt) }},
		{"", func(c *nftables.Conn) { c.FlushRuleset() }},
		{`chain cut_in lacks the rule "iifgroup 1073741826-1073742847 drop comment \"ownerowner\""`,
			func(c *nftables.Conn) { c.FlushChain(in) }},
		{`chain cut_in has "[immediate]" in the place of the rule`, func(c *nftables.Conn) {
			c.InsertRule(&nftables.Rule{Table: nt, Chain: in, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}})
		}},
		{`chain cut_in has a foreign rule "[counter] comment \"by hand\""`, func(c *nftables.Conn) {
			c.AddRule(&nftables.Rule{Table: nt, Chain: in, Exprs: []expr.Any{&expr.Counter{}}, UserData: comment("by hand")})
		}},
		{`chain cut_in has "[meta, byteorder, range, immediate] comment \"ownerowner\"" in the place`, func(c *nftables.Conn) {
			r := dropGroup("iifgroup", 1<<30+2, 1<<30+1022)
			c.FlushChain(in)
			c.AddRule(&nftables.Rule{Table: nt, Chain: in, Exprs: r.exprs, UserData: comment("ownerowner")})
		}},
		{`chain cut_in has comment "" at the rule`, func(c *nftables.Conn) {
			r := dropGroup("iifgroup", 1<<30+2, 1<<30+1023)
			c.FlushChain(in)
			c.AddRule(&nftables.Rule{Table: nt, Chain: in, Exprs: r.exprs})
		}},
		{`chain cut_in is "type filter hook prerouting priority -450; policy accept; policy drop"`, func(c *nftables.Conn) {
			drop := nftables.ChainPolicyDrop
			c.AddChain(&nftables.Chain{Name: in.Name, Table: nt, Policy: &drop})
		}},
		{`chain mine is foreign`, func(c *nftables.Conn) { c.AddChain(&nftables.Chain{Name: "mine", Table: nt}) }},
		{`chain nat_out is missing`, func(c *nftables.Conn) {
			ch := &nftables.Chain{Name: "nat_out", Table: nt}
			c.FlushChain(ch)
			c.DelChain(ch)
		}},
		{`set pools4 lacks 10.99.0.0/24`, func(c *nftables.Conn) {
			c.SetDeleteElements(pools, elements([]span{{netip.MustParseAddr("10.99.0.0"), netip.MustParseAddr("10.99.0.255")}}))
		}},
		{`set pools4 also has 1.2.3.4`, func(c *nftables.Conn) {
			c.SetAddElements(pools, elements([]span{{netip.MustParseAddr("1.2.3.4"), netip.MustParseAddr("1.2.3.4")}}))
		}},
		{`set mine is foreign`, func(c *nftables.Conn) {
			c.AddSet(&nftables.Set{Table: nt, ID: 9, Name: "mine", KeyType: nftables.TypeIPAddr}, nil)
		}},
		{`it has 1 foreign objects`, func(c *nftables.Conn) {
			c.AddObj(&nftables.NamedObj{Table: nt, Name: "n", Type: nftables.ObjTypeCounter, Obj: &expr.Counter{}})
		}},
	} {
		t.Run(tt.want, func(t *testing.T) {
			at := nettest.Node(t)
			tables := Open(at)
			must(t, tables.Replace(sample()))
			edit(t, at, tt.edit)
			_, err := tables.Verify(sample())
			if tt.want == "" {
				if !errors.Is(err, ErrGone) {
					t.Fatalf("%v, want ErrGone", err)
				}
			} else if !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%v, want ErrChanged: %s", err, tt.want)
			}
			must(t, tables.Replace(sample()))
			if _, err := tables.Verify(sample()); err != nil {
				t.Errorf("after replacing it: %v", err)
			}
		})
	}
}

// edit changes nftables as another program would.
func edit(t *testing.T, at *ns.Netns, f func(*nftables.Conn)) {
	t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(at.Fd()))
	must(t, err)
	f(c)
	must(t, c.Flush())
}

// A table that is replaced or changed is never half there: a reader sees either the old table or the
// new table.
func TestReplaceIsAtOnce(t *testing.T) {
	a, b := sample(), sample()
	b.Owner, b.Pools = "anotherone", nil
	t.Run("replaced", func(t *testing.T) {
		isAtOnce(t, a, b, func(tables *Tables, _, now Ruleset) error { return tables.Replace(now) })
	})
	t.Run("changed", func(t *testing.T) { isAtOnce(t, a, b, (*Tables).Change) })
}

func isAtOnce(t *testing.T, a, b Ruleset, write func(t *Tables, was, now Ruleset) error) {
	at := nettest.Node(t)
	tables := Open(at)
	must(t, tables.Replace(a))
	done := make(chan error)
	go func() {
		for i := range 100 {
			both := []Ruleset{a, b}
			if err := write(tables, both[i%2], both[1-i%2]); err != nil {
				done <- err
				return
			}
		}
		close(done)
	}()
	for reads := 0; ; reads++ {
		select {
		case err := <-done:
			must(t, err)
			if reads == 0 {
				t.Fatal("nothing was read meanwhile")
			}
			return
		default:
		}
		have, _, err := tables.read(a.Table())
		must(t, err)
		if da, db := diff(a.table(0), have), diff(b.table(0), have); da != nil && db != nil {
			t.Fatalf("neither the one (%v) nor the other (%v)", da, db)
		}
	}
}

// Agents of one node leave each other alone.
func TestInstancesSideBySide(t *testing.T) {
	tables := Open(nettest.Node(t))
	a, b := sample(), sample()
	b.Instance, b.Owner = "jihgfedcba", "anotherone"
	for _, r := range []Ruleset{a, b, a} {
		must(t, tables.Replace(r))
	}
	if _, err := tables.Verify(b); err != nil {
		t.Errorf("the other instance's table, after a replacement: %v", err)
	}
	must(t, tables.Delete(a.Instance))
	if _, err := tables.Verify(b); err != nil {
		t.Errorf("the other instance's table, after a deletion: %v", err)
	}
}

func TestWatch(t *testing.T) {
	at := nettest.Node(t)
	tables := Open(at)
	w, err := tables.Watch(sample().Instance)
	must(t, err)
	defer w.Close()
	var gone, others bool
	next := func(want bool, what string, f func()) {
		t.Helper()
		f()
		// A wait for news that must not come can be short: when f returns, the kernel has committed
		// what f did, and the news are in the socket.
		limit := nettest.Deadline
		if !want {
			limit = 50 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		news, err := w.Next(ctx)
		made := news.Made
		gone, others = news.Gone, news.Others
		if !want {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("%s: %v, %v, want nothing", what, made, err)
			}
			return
		}
		now, _ := w.current()
		if err != nil || made != now {
			t.Fatalf("%s: generation %d, %v, want %d", what, made, err, now)
		}
	}
	other := sample()
	other.Instance = "jihgfedcba"
	next(true, "written", func() { must(t, tables.Replace(sample())) })
	next(false, "another's written", func() { must(t, tables.Replace(other)) })
	next(true, "replaced", func() { must(t, tables.Replace(sample())) })
	next(false, "another's deleted", func() { must(t, tables.Delete(other.Instance)) })
	if gone || others {
		t.Errorf("a table that its owner replaces is gone (%v), or touched by others (%v)", gone, others)
	}
	next(true, "laid to sleep", func() { nettest.Run(t, at, "nft add table inet "+sample().Table()+" { flags dormant; }") })
	if gone || !others {
		t.Errorf("a table that others have laid to sleep is gone (%v), and not touched by others (%v)", gone, !others)
	}
	next(true, "flushed", func() { edit(t, at, (*nftables.Conn).FlushRuleset) })
	if !gone || !others {
		t.Error("a table that is flushed with everything is not gone")
	}
	next(true, "written again", func() { must(t, tables.Replace(sample())) })
	if gone || others {
		t.Error("a table that is written again is gone, or not by its owner")
	}
}

// Next reports a change if the socket could not hold all news.
func TestWatchMissesNothing(t *testing.T) {
	at := nettest.Node(t)
	tables := Open(at)
	w, err := tables.Watch(sample().Instance)
	must(t, err)
	defer w.Close()
	must(t, w.c.SetReadBuffer(1)) // the kernel's minimum
	other := sample()
	other.Instance, other.Excluded = "jihgfedcba", cidrs.Of(many()...)
	for range 3 {
		must(t, tables.Replace(other))
	}
	ctx, cancel := context.WithTimeout(t.Context(), nettest.Deadline)
	defer cancel()
	news, err := w.Next(ctx)
	now, _ := w.current()
	if err != nil || news.Made != now || news.Gone || !news.Others {
		t.Fatalf("%+v, %v, want generation %d, not gone, others'", news, err, now)
	}
}

func BenchmarkReplace(b *testing.B) {
	for _, pools := range [][]netip.Prefix{prefixes("10.88.0.0/16"), many()} {
		b.Run(fmt.Sprintf("%d CIDRs", len(pools)), func(b *testing.B) {
			tables := Open(nettest.Node(b))
			r := sample()
			r.Pools = pools
			for b.Loop() {
				must(b, tables.Replace(r))
			}
		})
	}
}

func BenchmarkVerify(b *testing.B) {
	tables := Open(nettest.Node(b))
	must(b, tables.Replace(sample()))
	for b.Loop() {
		if _, err := tables.Verify(sample()); err != nil {
			b.Fatal(err)
		}
	}
}
