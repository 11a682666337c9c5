package stamp

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	instance = "abcdefghij"
	id       = ID("klmnopqrst")
)

// Parse reads what Alias writes, also if the kernel's limit has cut off its end.
func TestAlias(t *testing.T) {
	for _, k := range []Key{
		{"net", "c1", "eth0"},
		{"n", "c", "a b"}, // interface names may be unusual
		{strings.Repeat("n", 128), strings.Repeat("c", 128), "eth0"},
		{"net", strings.Repeat("c", 200), "e"},
		{"net", strings.Repeat("c", 210), "e"},
		{"net", strings.Repeat("c", 220), "e"},
		{"net", strings.Repeat("c", 221), "e"}, // there is room for all but the mark of the start
		{"net", strings.Repeat("c", 222), "e"},
		{"net", strings.Repeat("c", 223), "e"},
		{strings.Repeat("n", 300), "c", "eth0"},
	} {
		for _, start := range []int64{0, 1, 1 << 40, 1<<63 - 1} {
			testAlias(t, k, start)
			testAlias(t, k, start, "10.88.0.5")
			testAlias(t, k, start, "10.88.0.5", "fd88::5")
		}
	}
}

func testAlias(t *testing.T, k Key, start int64, addrs ...string) {
	alias, without := Alias(instance, id, k, start, addrs...), Alias(instance, id, k, start)
	if len(alias) > AliasLen || !strings.HasPrefix(alias, without) || !Alike(alias, without) {
		t.Errorf("%q and, without addresses, %q", alias, without)
	}
	s, ok := Parse(alias)
	if !ok || s.Instance != instance || s.ID != id || !s.Is(k) || s.Link() != Link(instance, id) {
		t.Errorf("%q: %+v, %v", alias, s, ok)
	}
	key, err := s.Key()
	if err != nil || s.Short() && s.Since(max(start, 1)) != Alias(instance, id, k, max(start, 1)) || !s.Short() && Alias(instance, id, key, start, addrs...) != alias {
		t.Errorf("%q: %+v, %v", alias, key, err)
	}
	room := len(alias)
	if start > 0 {
		room = len(named(instance, id, k)) + len(atStart) + len(strconv.FormatInt(start, startBase))
	}
	if longer := max(room, len(named(instance, id, k))) >= AliasLen; s.Short() != longer || !longer && key != k {
		t.Errorf("%q is %+v, of %+v", alias, key, k)
	}
	if err := Check(Link(instance, id), alias, k); err != nil {
		t.Errorf("%q: %v", alias, err)
	}
	if again := s.Since(start + 5); again != Alias(instance, id, k, start+5, addrs...) && start+5 > 0 {
		t.Errorf("%q, asked for again: %q", alias, again)
	}
	want := addrs
	if alias == without {
		want = nil
	}
	if room := len(without)+len(" =")+len(strings.Join(addrs, ",")) < AliasLen; !slices.Equal(s.Addresses(), want) || room && len(s.Addresses()) < len(addrs) {
		t.Errorf("%q has the addresses %q, of %q", alias, s.Addresses(), addrs)
	}
	if s.Start != start {
		t.Errorf("%q: began at %d, not %d", alias, s.Start, start)
	}
	if other := (Key{k.Network, k.ContainerID, k.Ifname + "1"}); !s.Short() && s.Is(other) {
		t.Errorf("%q is that of %+v", alias, other)
	}
}

// Links of earlier versions have full aliases that lack their start, or a part of it. Parse
// reads these aliases, and Alike takes each for the alias that Alias writes for the same pod.
func TestFullAliasWithoutStart(t *testing.T) {
	for n := 190; n < 300; n++ {
		k := Key{"net", strings.Repeat("c", n), "eth0"}
		const start = 1 << 50
		whole := named(instance, id, k) + atStart + strconv.FormatInt(start, startBase)
		if len(whole) < AliasLen {
			continue
		}
		old, now := whole[:AliasLen], Alias(instance, id, k, start)
		s, ok := Parse(old)
		if !ok || s.Start != 0 || !s.Is(k) || s.ID != id || s.Short() != (len(named(instance, id, k)) >= AliasLen) {
			t.Errorf("%q: %+v, %v", old, s, ok)
		}
		if !Alike(old, now) || !Alike(now, old) {
			t.Errorf("%q and %q differ", old, now)
		}
		if again := s.Since(start); again != now {
			t.Errorf("%q, asked for again: %q, not %q", old, again, now)
		}
		other := Alias(instance, id, Key{"other", k.ContainerID, k.Ifname}, start)
		if Alike(old, other) || Alike(now, other) {
			t.Errorf("%q and %q are alike", now, other)
		}
	}
}

// Check accepts only a link whose name and alias both say the same key and incarnation
// (cilium #44463: teardown by interface name hit the next pod's veth).
func TestCheck(t *testing.T) {
	k := Key{"net", "c1", "eth0"}
	alias, name := Alias(instance, id, k, 0), Link(instance, id)
	for what, c := range map[string]struct {
		name, alias string
		key         Key
	}{
		"no alias":                      {name, "", k},
		"somebody else's alias":         {name, "uplink", k},
		"another network":               {name, alias, Key{"other", "c1", "eth0"}},
		"another container":             {name, alias, Key{"net", "c2", "eth0"}},
		"a container of that beginning": {name, alias, Key{"net", "c1", "eth01"}},
		"another interface":             {name, alias, Key{"net", "c1", "eth1"}},
		"another incarnation":           {Link(instance, "aaaaaaaaaa"), alias, k},
		"another instance's name":       {Link("zzzz", id), alias, k},
		"more behind the key":           {name, alias + "/x", k},
		"another first word":            {name, strings.Replace(alias, "berth", "Berth", 1), k},
		"an instance that is none":      {name, strings.Replace(alias, instance, "ABCDEFGHIJ", 1), k},
		"no key":                        {name, strings.TrimSuffix(alias, "net/c1/eth0"), k},
	} {
		if err := Check(c.name, c.alias, c.key); err == nil {
			t.Errorf("%s: %q with %q is taken for that of %s", what, c.name, c.alias, c.key)
		}
	}
}

func TestLinkID(t *testing.T) {
	if have, ok := LinkID(Link(instance, id)); !ok || have != id {
		t.Errorf("%q, %v", have, ok)
	}
	if have, ok := OfLink(Link(instance, id)); !ok || have != instance[:PrefixLen] {
		t.Errorf("instance %q, %v", have, ok)
	}
	for _, name := range []string{"", "eth0", "babcdklmnopqrs", "xabcdklmnopqrst", "babcdklmnopqrs1", "bab-dklmnopqrst", "babcdklmnopqrstu"} {
		if have, ok := LinkID(name); ok {
			t.Errorf("%q is taken for the link of %s", name, have)
		}
		if have, ok := OfLink(name); ok {
			t.Errorf("%q is taken for a link of instance %s", name, have)
		}
	}
}

func TestIsTable(t *testing.T) {
	for name, want := range map[string]bool{Table("abcdefghi2"): true, "berth-abc": false, "abcdefghi2": false, "berth-ABCDEFGHI2": false, "": false} {
		if IsTable(name) != want {
			t.Errorf("%q: %t", name, !want)
		}
	}
}

func TestOfAltName(t *testing.T) {
	name := Link(instance, id)
	if have, ok := OfAltName(AltName(name)); !ok || have != name {
		t.Errorf("%q, %v", have, ok)
	}
	for _, alt := range []string{"", name, "berth-", "berth-eth0", "Berth-" + name, AltName(name) + "x", AltName(AltName(name))} {
		if have, ok := OfAltName(alt); ok {
			t.Errorf("%q is taken for the second name of %s", alt, have)
		}
	}
}

// Alias writes the same alias again from what Parse reads.
func FuzzParse(f *testing.F) {
	f.Add(Alias(instance, id, Key{"net", "c1", "eth0"}, 7))
	f.Add(Alias(instance, id, Key{strings.Repeat("n", 128), strings.Repeat("c", 128), "eth0"}, 7))
	f.Add("berth abcdefghij klmnopqrst a/b")
	f.Add(PortAlias(instance, id, Key{"net", "c1", "eth0"}, 7))
	f.Add("berth abcdefghij klmnopqrst @0000000000007 a/b/c")
	f.Add(named(instance, id, Key{strings.Repeat("n", 128), strings.Repeat("c", 128), "eth0"})[:AliasLen])
	f.Fuzz(func(t *testing.T, alias string) {
		if s, ok := ParsePort(alias); ok {
			if k, err := s.Key(); err == nil && len(alias) != AliasLen && s.addrs == "" && PortAlias(s.Instance, s.ID, k, s.Start) != alias {
				t.Errorf("%q is read as %+v, %+v", alias, s, k)
			}
		}
		s, ok := Parse(alias)
		if !ok {
			return
		}
		k, err := s.Key()
		if err == nil && (len(alias) != AliasLen && Alias(s.Instance, s.ID, k, s.Start) != alias || !s.Is(k) || !s.Short() && strings.Contains(k.Network+k.ContainerID+k.Ifname, "/")) {
			t.Errorf("%q is read as %+v, %+v", alias, s, k)
		}
	})
}

// Aliases with different addresses differ. An alias without addresses, such as an alias of an earlier
// version, is Alike to each of them.
func TestAlikeByAddresses(t *testing.T) {
	k := Key{"net", "c", "eth0"}
	with := func(addrs ...string) string { return Alias("aaaaaaaaaa", "bbbbbbbbbb", k, 1, addrs...) }
	if !Alike(with("10.0.0.1"), with()) || !Alike(with(), with("10.0.0.1")) || !Alike(with("10.0.0.1"), with("10.0.0.1")) {
		t.Error("aliases of one attachment differ")
	}
	if Alike(with("10.0.0.1"), with("10.0.0.2")) {
		t.Error("aliases that say different addresses are alike")
	}
}

// The names of an instance's device-info files begin in a way that no other instance's do, and end with the incarnation.
func TestInfoFile(t *testing.T) {
	name := InfoFile(instance, id)
	rest, ours := strings.CutPrefix(name, InfoFiles(instance))
	if !ours || ID(rest) != id || name == Table(instance) || strings.ContainsAny(name, "/ ") {
		t.Errorf("%q", name)
	}
	if strings.HasPrefix(name, InfoFiles("bbcdefghij")) {
		t.Errorf("%q is another instance's, too", name)
	}
}
