package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func prefixes(cidrs ...string) (all []netip.Prefix) {
	for _, c := range cidrs {
		all = append(all, netip.MustParsePrefix(c))
	}
	return all
}

// writeMasqAgent returns a configuration that names ip-masq-agent's file, and the file's path.
func writeMasqAgent(t *testing.T, text string) (conf, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "ip-masq-agent")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return onePool + "masquerade: {excludedCIDRs: [203.0.113.0/24], ipMasqAgentFile: " + path + "}\n", path
}

// Of the files that ip-masq-agent reads, Berth reads the same, with the same defaults.
func TestMasqAgent(t *testing.T) {
	private := prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
	links := prefixes("169.254.0.0/16", "fe80::/10")
	for _, tt := range []struct {
		text     string
		excluded []netip.Prefix
		resync   time.Duration
	}{
		{"", slices.Concat(private, links), time.Minute},
		{"# nothing\n", slices.Concat(private, links), time.Minute},
		{"masqLinkLocal: true\n", slices.Concat(private, links[1:]), time.Minute},
		{"masqLinkLocalIPv6: true\nresyncInterval: 1m30s\n", slices.Concat(private, links[:1]), 90 * time.Second},
		{"nonMasqueradeCIDRs:\n  - 10.1.0.0/16\n  - fd00::/8\nmasqLinkLocal: true\nmasqLinkLocalIPv6: true\n", prefixes("10.1.0.0/16", "fd00::/8"), time.Minute},
		{"nonMasqueradeCIDRs: []\n", links, time.Minute},
		{"nonMasqueradeCIDRs:\n", links, time.Minute},
		{"cidrLimit: 1\nnonMasqueradeCIDRs: [10.1.0.0/16]\n", append(prefixes("10.1.0.0/16"), links...), time.Minute},
		{"{\n\t\"nonMasqueradeCIDRs\": [\"10.1.0.0/16\"],\n\t\"masqLinkLocal\": true,\n\t\"resyncInterval\": \"5s\"\n}\n", append(prefixes("10.1.0.0/16"), links[1]), 5 * time.Second},
	} {
		conf, _ := writeMasqAgent(t, tt.text)
		c, err := Load(write(t, conf), Flags{})
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		want := append(prefixes("203.0.113.0/24"), tt.excluded...)
		if have := c.Masquerade.Excluded(); !reflect.DeepEqual(have, want) || c.Masquerade.MasqAgent.ResyncInterval != tt.resync {
			t.Errorf("%s: %v, %+v, want %v", tt.text, have, c.Masquerade.MasqAgent, want)
		}
	}
}

// A wrong file is not followed: the error has its path, its line and its key, and the defaults hold until it is right.
func TestMasqAgentRefuses(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"nonMasqueradeCIDR: [10.0.0.0/8]", `line 1: unknown key "nonMasqueradeCIDR": perhaps "nonMasqueradeCIDRs" is meant`},
		{"masqLinkLocal: false\nnonMasqueradeCIDRs:\n- 10.0.0.1/8\n", "line 3: nonMasqueradeCIDRs: 10.0.0.1/8 has bits set beyond /8: is 10.0.0.0/8 meant?"},
		{"nonMasqueradeCIDRs: [10.0.0.0]", "10.0.0.0 has no prefix length"},
		{"nonMasqueradeCIDRs: [ten]", `line 1: nonMasqueradeCIDRs: "ten" is not a CIDR`},
		{"nonMasqueradeCIDRs: 10.0.0.0/8", "line 1: `nonMasqueradeCIDRs: 10.0.0.0/8`: want a list"},
		{"nonMasqueradeCIDRs: [10.0.0.0/8, 10.1.0.0/16]\ncidrLimit: 1", "line 1: nonMasqueradeCIDRs: 2 CIDRs are more than cidrLimit, which is 1"},
		{"nonMasqueradeCIDRs: [" + strings.Repeat("10.0.0.0/8,", 65) + "]", "65 CIDRs are more than cidrLimit, which is 64"},
		{"masqLinkLocal: often", "line 1: `masqLinkLocal: often`: want true or false"},
		{"resyncInterval: 60", `line 1: resyncInterval: "60" is not a duration`},
		{"resyncInterval: 1ms", "resyncInterval: 1ms is not within 1s to 24h0m0s"},
		{"{", "near line 1"},
		{"masqLinkLocal: true\n---\nmasqLinkLocal: true\n", "more than one YAML document"},
	} {
		conf, path := writeMasqAgent(t, tt.text)
		c, err := Load(write(t, conf), Flags{})
		if err != nil {
			t.Errorf("%s: no agent starts: %v", tt.text, err)
			continue
		}
		wantError(t, tt.text, c.Masquerade.MasqAgentErr, tt.want)
		wantError(t, tt.text, c.Masquerade.MasqAgentErr, path)
		if have := c.Masquerade.Excluded(); len(have) != 6 || have[1] != netip.MustParsePrefix("10.0.0.0/8") {
			t.Errorf("%s: %v", tt.text, have)
		}
	}
	_, err := Load(write(t, onePool+"masquerade: {ipMasqAgentFile: ip-masq-agent}"), Flags{})
	wantError(t, "a relative path", err, `line 2: masquerade.ipMasqAgentFile: "ip-masq-agent" is no absolute path`)
}

// A file that is absent has all defaults, as with ip-masq-agent. What changes later is read again, and nothing else is.
func TestResyncMasqAgent(t *testing.T) {
	conf, path := writeMasqAgent(t, "")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	c, err := Load(write(t, conf), Flags{})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.ResyncMasqAgent(); again != c || err != nil {
		t.Errorf("an absent file is not the same when it is read again: %v", err)
	}
	if err := os.WriteFile(path, []byte("nonMasqueradeCIDRs: [10.9.0.0/16]"), 0o600); err != nil {
		t.Fatal(err)
	}
	next, err := c.ResyncMasqAgent()
	if err != nil {
		t.Fatal(err)
	}
	want := *c
	want.Masquerade.MasqAgent = next.Masquerade.MasqAgent
	if !reflect.DeepEqual(*next, want) || next.Masquerade.Excluded()[1] != netip.MustParsePrefix("10.9.0.0/16") {
		t.Errorf("the file says something else, and the configuration is %+v", next)
	}
	if err := os.WriteFile(path, []byte("masqLinkLocal: 3"), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := next.ResyncMasqAgent()
	wantError(t, "a file that has become wrong", err, "want true or false")
	if again != next {
		t.Errorf("a wrong file changes the configuration to %+v", again)
	}
	if again, err := (&Config{}).ResyncMasqAgent(); err != nil || again.Masquerade.MasqAgent != nil {
		t.Errorf("without a file: %+v, %v", again, err)
	}
}
