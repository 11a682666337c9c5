package command

import (
	"strings"
	"testing"
)

func TestQuoted(t *testing.T) {
	for word, want := range map[string]string{
		"/var/lib/cni": "/var/lib/cni",
		"":             "''",
		"^leak/a$":     "'^leak/a$'",
		"it's":         `'it'\''s'`,
		"a b":          "'a b'",
	} {
		if got := quoted(word); got != want {
			t.Errorf("%q is quoted as %s, not %s", word, got, want)
		}
	}
}

// The command line that repeats a check has the flags that were given.
func TestConformRepeat(t *testing.T) {
	o := &conforming{name: "berth conform", self: "berth"}
	c := o.cobraCommand()
	err := c.ParseFlags([]string{"--bin-dir", "/b", "--conf", "/my net.conflist", "--state-dir", "/s1", "--state-dir", "/s2",
		"--points", "3", "-o", "junit", "--run", "leak"})
	must(t, err)
	want := `berth conform --bin-dir /b --conf '/my net.conflist' --state-dir /s1 --state-dir /s2 --points 3 --run '^leak/x$'`
	if got := o.command("^leak/x$"); got != want {
		t.Errorf("to repeat:\n%s, not\n%s", got, want)
	}
	o.self = "/my bin/../bin/berth"
	want = strings.Replace(want, "berth", "/bin/berth", 1)
	if got := o.command("^leak/x$"); got != want {
		t.Errorf("to repeat, when called by its path:\n%s, not\n%s", got, want)
	}
}
