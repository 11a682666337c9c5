package attachment

import (
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/link"
)

const (
	instance = "abcdefghij"
	id       = hold.ID("klmnopqrst")
)

// What Alias writes is read again, also what the kernel's limit cut off.
func TestAlias(t *testing.T) {
	for _, k := range []Key{
		{"net", "c1", "eth0"},
		{"n", "c", "a b"}, // an interface name may be odd
		{strings.Repeat("n", 128), strings.Repeat("c", 128), "eth0"},
		{"net", strings.Repeat("c", 222), "e"},
		{"net", strings.Repeat("c", 223), "e"},
		{strings.Repeat("n", 300), "c", "eth0"},
	} {
		alias := Alias(instance, id, k)
		s, err := ParseAlias(alias)
		if err != nil || s.Instance != instance || s.ID != id || Alias(instance, id, s.Key) != alias {
			t.Errorf("%q: %+v, %v", alias, s, err)
		}
		if short := len(alias) == maxAlias; s.Short != short || !short && s.Key != k {
			t.Errorf("%q is %+v, of %+v", alias, s, k)
		}
		if err := CheckStamp(link.Name(instance[:4], id), alias, k); err != nil {
			t.Errorf("%q: %v", alias, err)
		}
	}
}

// A deletion is about a link whose name and alias both say the same key and
// incarnation, and about no other (cilium #44463: teardown by interface name
// hit the next pod's veth).
func TestCheckStamp(t *testing.T) {
	k := Key{"net", "c1", "eth0"}
	alias, name := Alias(instance, id, k), link.Name(instance[:4], id)
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
		"another incarnation":           {link.Name(instance[:4], "aaaaaaaaaa"), alias, k},
		"another instance's name":       {link.Name("zzzz", id), alias, k},
		"more behind the key":           {name, alias + "/x", k},
		"another first word":            {name, strings.Replace(alias, "berth", "Berth", 1), k},
		"an instance that is none":      {name, strings.Replace(alias, instance, "ABCDEFGHIJ", 1), k},
		"no key":                        {name, strings.TrimSuffix(alias, "net/c1/eth0"), k},
	} {
		if err := CheckStamp(c.name, c.alias, c.key); err == nil {
			t.Errorf("%s: %q with %q is taken for that of %s", what, c.name, c.alias, c.key)
		}
	}
}

func TestLinkID(t *testing.T) {
	if have, ok := LinkID(link.Name(instance[:4], id)); !ok || have != id {
		t.Errorf("%q, %v", have, ok)
	}
	for _, name := range []string{"", "eth0", "babcdklmnopqrs", "xabcdklmnopqrst", "babcdklmnopqrs1", "bab-dklmnopqrst", "babcdklmnopqrstu"} {
		if have, ok := LinkID(name); ok {
			t.Errorf("%q is taken for the link of %s", name, have)
		}
	}
}

// An attachment is older than a queued deletion if its ADD began before it in
// the same boot, or in an earlier boot. Done again in a later boot, the deletion
// spares what began there.
func TestBeganBeforeDeletion(t *testing.T) {
	for _, c := range []struct {
		epoch   string
		started int64
		boot    string // of the deletion, begun at 5
		now     string
		want    bool
	}{
		{"one/0/1/2", 4, "one", "one", true},
		{"one/0/1/2", 5, "one", "one", true},
		{"one/0/1/2", 6, "one", "one", false},
		{"one/0/9/9", 6, "one", "one", false}, // another netns of the same boot
		{"one/0/1/2", 4, "one", "two", true},
		{"one/0/1/2", 6, "one", "two", false},
		{"one/0/1/2", 6, "two", "two", true},  // it outlived a reboot
		{"two/0/1/2", 4, "one", "two", false}, // the deletion did
		{"one/0/1/2", 6, "two", "three", true},
	} {
		r := Record{Epoch: c.epoch, Started: c.started}
		if have := r.BeganBeforeDeletion(c.boot, 5, c.now); have != c.want {
			t.Errorf("%+v: %v", c, have)
		}
	}
}

func FuzzParseAlias(f *testing.F) {
	f.Add(Alias(instance, id, Key{"net", "c1", "eth0"}))
	f.Add(Alias(instance, id, Key{strings.Repeat("n", 128), strings.Repeat("c", 128), "eth0"}))
	f.Add("berth abcdefghij klmnopqrst a/b")
	f.Fuzz(func(t *testing.T, alias string) {
		s, err := ParseAlias(alias)
		if err == nil && (Alias(s.Instance, s.ID, s.Key) != alias || !s.Short && strings.Contains(s.Key.Network+s.Key.ContainerID+s.Key.Ifname, "/")) {
			t.Errorf("%q is read as %+v", alias, s)
		}
	})
}
