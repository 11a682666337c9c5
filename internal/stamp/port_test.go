package stamp

import (
	"strings"
	"testing"
)

// A port's name and alias are read as a port's, whatever the alias's length, and never as a host veth's; nor the other way round.
func TestPort(t *testing.T) {
	port, link := Port(instance, id), Link(instance, id)
	if IsLink(port) || IsPort(link) || !IsPort(port) || !IsEnd(port) || !IsEnd(link) || IsEnd("eth0") || port == link {
		t.Errorf("names %s and %s", port, link)
	}
	for _, name := range []string{port, link} {
		if have, ok := EndID(name); !ok || have != id {
			t.Errorf("%s is of %q, %t", name, have, ok)
		}
	}
	if have, ok := EndID("xabcdklmnopqrst"); ok {
		t.Errorf("nobody's name is of %q", have)
	}
	for _, k := range []Key{{"net", "c1", "eth0"}, {strings.Repeat("n", 128), strings.Repeat("c", 128), "eth0"}} {
		for _, start := range []int64{0, 1 << 40} {
			alias, of := PortAlias(instance, id, k, start, "10.88.0.5"), Alias(instance, id, k, start, "10.88.0.5")
			if len(alias) != len(of) || Alike(alias, of) {
				t.Errorf("%q and the host veth's %q", alias, of)
			}
			if _, ok := Parse(alias); ok {
				t.Errorf("%q is taken for a host veth's", alias)
			}
			if _, ok := ParsePort(of); ok {
				t.Errorf("%q is taken for a port's", of)
			}
			s, ok := ParsePort(alias)
			if !ok || !s.Is(k) || s.Start != start || s.ID != id || s.Link() != port {
				t.Errorf("%q: %+v, %v", alias, s, ok)
			}
			if later := s.Since(start + 5); later != PortAlias(instance, id, k, start+5, "10.88.0.5") || !Alike(alias, later) {
				t.Errorf("%q, asked for again: %q", alias, later)
			}
			for _, a := range []string{alias, of} {
				s, ok := ParseEnd(a)
				want := port
				if a == of {
					want = link
				}
				if !ok || s.Link() != want {
					t.Errorf("%q: %+v, %v", a, s, ok)
				}
			}
		}
	}
}

// No group of ports is a group of host veths, nor another instance's.
func TestPortGroups(t *testing.T) {
	seen := map[uint32]string{}
	for _, instance := range []string{"aaaa", "aaab", "abcd", "7777"} {
		ports, err := PortGroupsOf(instance)
		if err != nil {
			t.Fatal(err)
		}
		links, _ := GroupsOf(instance)
		for name, group := range map[string]uint32{"live": ports.Live(), "coming": ports.Coming(), "cut": ports.Cut()} {
			if seen[group] != "" || group >= FirstGroup || group == 0 || links.Has(group) || !ports.Has(group) {
				t.Errorf("%s of %s is %d, as %q", name, instance, group, seen[group])
			}
			seen[group] = name + " of " + instance
		}
		if ports.Has(links.Live()) || ports.Has(ports.Live()-1) || ports.Has(ports.Live()+4) {
			t.Errorf("%s has groups of others", instance)
		}
		id := ID("klmnopqrst")
		port, _ := ParsePort(PortAlias(instance+"aaaaaa", id, Key{"n", "c", "i"}, 0))
		link, _ := Parse(Alias(instance+"aaaaaa", id, Key{"n", "c", "i"}, 0))
		if !port.IsComing(ports.Coming()) || port.IsComing(links.Coming()) || port.IsComing(ports.Live()) || !link.IsComing(links.Coming()) || link.IsComing(ports.Coming()) {
			t.Errorf("%s: what is coming", instance)
		}
		alias := PortAlias(instance+"aaaaaa", id, Key{"n", "c", "i"}, 0)
		if !IsWholePort(alias, ports.Live()) || !IsWholePort(alias, 0) || IsWholePort(alias, ports.Coming()) || IsWholePort(alias, ports.Cut()) || IsWholePort("", 0) {
			t.Errorf("%s: what is whole", instance)
		}
	}
	if _, err := PortGroupsOf("abc"); err == nil {
		t.Error("no instance has groups")
	}
}
