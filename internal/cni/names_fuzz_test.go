package cni_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
)

var specID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`) // CNI 1.1, section 2

// Whatever the environment has: an accepted id is valid by the specification and no path;
// the kernel's dev_valid_name accepts an accepted new name, and no namespace has that name
// already; and a refusal is short and valid UTF-8.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"", "c1", "../c1", "eth0", "eth%d", "all", "lo", "/run/netns/a", "/run/../a", "a\x00", "\xff", "é", "à", strings.Repeat("a", 129), "a\u2028b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, ifname, path := cni.CheckContainerID(s), cni.CheckIfname(s), cni.CheckNetnsPath(s)
		if want := specID.MatchString(s) && len(s) <= 128; (id == nil) != want {
			t.Errorf("container id %q: %v", s, id)
		}
		if id == nil && (filepath.Base(s) != s || s == "." || s == "..") {
			t.Errorf("container id %q leads elsewhere", s)
		}
		kernel := len(s) > 0 && len(s) < 16 && s != "." && s != ".." &&
			!strings.ContainsFunc(s, func(r rune) bool { return r == '/' || r == ':' || unicode.IsSpace(r) }) // but single bytes of the name may be blanks
		newIfname := cni.CheckNewIfname(s)
		if newIfname == nil && (ifname != nil || strings.ContainsAny(latin1(s), "\t\n\v\f\r \u00a0")) {
			t.Errorf("new interface name %q is accepted", s)
		}
		if ifname == nil && (!kernel || strings.Contains(s, "%") || s == "lo") {
			t.Errorf("interface name %q is accepted", s)
		}
		if path == nil && !filepath.IsAbs(s) {
			t.Errorf("path %q is accepted", s)
		}
		for _, e := range []*api.Error{id, ifname, newIfname, path} {
			if e != nil && (!utf8.ValidString(e.Error()) || len(e.Error()) > 600) {
				t.Errorf("%q is refused with %q", s, e)
			}
		}
	})
}

// latin1 reads each byte as a character, as the kernel's isspace does.
func latin1(s string) string {
	var all []rune
	for _, c := range []byte(s) {
		all = append(all, rune(c))
	}
	return string(all)
}
