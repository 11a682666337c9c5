package conform

import (
	"slices"
	"strings"
	"testing"
)

// What each ADD sets to the same value, and no DEL sets back, is no leak: a note says that the suite takes it for set up once.
func TestSetUpOnce(t *testing.T) {
	t.Parallel()
	r := judgedBy(t, planted("proxy-arp-set"), "1.1.0", "^leak/add-del$").Results[0]
	if notes := strings.Join(r.Notes, "\n"); r.Outcome != Pass || !strings.Contains(notes, "taken for set up once and for all:\n") || !strings.Contains(notes, "sysctl ipv4/conf/default/proxy_arp = 1") {
		t.Errorf("%s: %q: %q", r.Outcome, r.Seen, notes)
	}
}

// A note has what the first pod changed before what it made, and a sysctl of all links once.
func TestNoteOnce(t *testing.T) {
	c := &T{}
	c.noteOnce(nil)
	c.noteOnce([]string{"link br0 bridge", "setting eth0 promiscuity on", "sysctl ipv4/conf/all/forwarding = 1", "sysctl ipv4/conf/eth0/forwarding = 1", "sysctl ipv4/conf/eth0/proxy_arp = 1"})
	want := "the first pod left these, and they are taken for set up once and for all:\nsetting eth0 promiscuity on\nsysctl ipv4/conf/all/forwarding = 1\nsysctl ipv4/conf/eth0/proxy_arp = 1\nlink br0 bridge"
	if len(c.notes) != 1 || c.notes[0] != want {
		t.Errorf("%q", c.notes)
	}
}

// A file that is left is told once, although it mentions a pod. A file that was there already, and mentions one, is told by that.
func TestBrief(t *testing.T) {
	got := brief([]string{"file /run/a", "file-content /run/a mentions conform-1", "file-content /run/b mentions conform-1", "link x"})
	if want := []string{"file /run/a", "file-content /run/b mentions conform-1", "link x"}; !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
}
