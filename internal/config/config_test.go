package config

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// full has every key, each with a value that is no default.
const full = `
pools:
- name: default
  cidrs: [10.88.0.0/16, "fd00:88::/64"]
  cooldown: 5s
- name: blue
  cidrs:
  - 10.99.0.0/24
cooldown: 1m
mtu: 9000
masquerade: {enabled: false, excludedCIDRs: [192.168.0.0/16], ports: 20000-51819}
blockedCIDRs: [100.64.0.0/10]
connections: 64
concurrency: 7
metrics: :9477
tracing: {endpoint: "https://collector.example", sampling: 0.25}
logLevel: debug
sweepInterval: 2m
forwarding: false
history: {records: 50, age: 90m}
fullNotReady: true
`

const onePool = "pools: [{name: a, cidrs: [10.0.0.0/24]}]\n"

// write puts a configuration where an agent looks for it.
func write(t testing.TB, text string) root.Dir {
	t.Helper()
	dir := root.Dir(t.TempDir())
	nettest.Must(t, os.MkdirAll(filepath.Dir(dir.Config()), 0o755))
	nettest.Must(t, os.WriteFile(dir.Config(), []byte(text), 0o644))
	return dir
}

func pool(name string, cooldown time.Duration, cidrs ...string) ipam.PoolConfig {
	p := ipam.PoolConfig{Name: name, Cooldown: cooldown}
	for _, c := range cidrs {
		p.CIDRs = append(p.CIDRs, netip.MustParsePrefix(c))
	}
	return p
}

func TestLoad(t *testing.T) {
	fullConfig := Config{
		Pools: []ipam.PoolConfig{
			pool("default", 5*time.Second, "10.88.0.0/16", "fd00:88::/64"),
			pool("blue", time.Minute, "10.99.0.0/24"),
		},
		Cooldown:      time.Minute,
		MTU:           9000,
		Masquerade:    Masquerade{ExcludedCIDRs: []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")}, Ports: Ports{20000, 51819}},
		BlockedCIDRs:  []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10")},
		Connections:   64,
		Concurrency:   7,
		Metrics:       "127.0.0.1:9477",
		Tracing:       Tracing{"https://collector.example/v1/traces", 0.25},
		LogLevel:      slog.LevelDebug,
		SweepInterval: 2 * time.Minute,
		History:       History{Records: 50, Age: 90 * time.Minute},
		FullNotReady:  true,
	}
	defaults := Config{
		Pools:      []ipam.PoolConfig{pool("a", 65*time.Second, "10.0.0.0/24")},
		Cooldown:   65 * time.Second,
		Masquerade: Masquerade{Enabled: true, Ports: Ports{1024, 65535}},
		BlockedCIDRs: []netip.Prefix{
			netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fd00:ec2::254/128"),
			netip.MustParsePrefix("fd20:ce::254/128"), netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"),
			netip.MustParsePrefix("100.100.100.200/32"), netip.MustParsePrefix("fd00:100::100:200/128"),
		},
		Connections:   32768,
		Tracing:       Tracing{Sampling: 1},
		Concurrency:   64,
		LogLevel:      slog.LevelInfo,
		SweepInterval: 30 * time.Second,
		History:       History{Records: 10_000, Age: 7 * 24 * time.Hour},
		Forwarding:    true,
	}
	but := func(c Config, change func(*Config)) Config { change(&c); return c }
	for _, tt := range []struct {
		name, text string
		flags      Flags
		want       Config
	}{
		{"everything said", full, Flags{}, fullConfig},
		{"only a pool", onePool, Flags{}, defaults},
		{"only a flag", "", Flags{Pools: []string{"a=10.0.0.0/24"}}, defaults},
		{"only comments", "# nothing\n", Flags{Pools: []string{"a=10.0.0.0/24"}}, defaults},
		{"flags over the file", full, Flags{Pools: []string{"red=10.1.0.0/24", "default=10.2.0.0/24,fd00::/64"}, Metrics: "[::]:0"},
			but(fullConfig, func(c *Config) {
				c.Metrics = "[::]:0"
				c.Pools = []ipam.PoolConfig{
					pool("red", time.Minute, "10.1.0.0/24"),
					pool("default", time.Minute, "10.2.0.0/24", "fd00::/64"),
					pool("blue", time.Minute, "10.99.0.0/24"),
				}
			})},
		{"a flag where the file's pool was", onePool, Flags{Pools: []string{"b=10.0.0.0/25", "a=10.0.1.0/24"}},
			but(defaults, func(c *Config) {
				c.Pools = []ipam.PoolConfig{pool("b", 65*time.Second, "10.0.0.0/25"), pool("a", 65*time.Second, "10.0.1.0/24")}
			})},
		{"a small MTU without IPv6", onePool + "mtu: 68", Flags{}, but(defaults, func(c *Config) { c.MTU = 68 })},
		{"masquerade without enabled", onePool + "masquerade: {}", Flags{}, defaults},
		{"nothing blocked, no limit", onePool + "blockedCIDRs: []\nconnections: 0", Flags{},
			but(defaults, func(c *Config) { c.BlockedCIDRs, c.Connections = nil, 0 })},
		{"only what rests, to remove", "cooldown: 5s", Flags{Remove: true},
			but(defaults, func(c *Config) { c.Pools, c.Cooldown = nil, 5*time.Second })},
		{"aliases, merges and nothing", "pools:\n- &a {name: a, cidrs: [10.0.0.0/24], <<: {cooldown: 8s}}\n- {<<: [{cooldown: 7s}, *a], name: b, cidrs: [10.0.1.0/24]}\nmtu: ~\nconnections:", Flags{},
			but(defaults, func(c *Config) {
				c.Pools = []ipam.PoolConfig{pool("a", 8*time.Second, "10.0.0.0/24"), pool("b", 7*time.Second, "10.0.1.0/24")}
			})},
		{"endpoint with a path", onePool + "tracing: {endpoint: 'http://[::1]:4318/own/'}", Flags{}, but(defaults, func(c *Config) { c.Tracing.Endpoint = "http://[::1]:4318/own/" })},
		{"endpoint without one", onePool + "tracing: {endpoint: 'http://127.0.0.1:4318/', sampling: 0}", Flags{}, but(defaults, func(c *Config) { c.Tracing = Tracing{"http://127.0.0.1:4318/v1/traces", 0} })},
		{"localhost", onePool + "metrics: localhost:1", Flags{}, but(defaults, func(c *Config) { c.Metrics = "127.0.0.1:1" })},
	} {
		got, err := Load(write(t, tt.text), tt.flags)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		} else if !reflect.DeepEqual(*got, tt.want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", tt.name, *got, tt.want)
		}
	}
}

func TestLoadWithoutAFile(t *testing.T) {
	dir := root.Dir(t.TempDir())
	pools := []string{"a=10.0.0.0/24"}
	if _, err := Load(dir, Flags{Pools: pools}); err != nil {
		t.Errorf("the root's own is not there: %v", err)
	}
	missing := filepath.Join(string(dir), "missing.yaml")
	_, err := Load(dir, Flags{Pools: pools, File: missing})
	wantError(t, "a named one is not there", err, "reading config: open "+missing+": no such file")
	_, err = Load(dir, Flags{})
	wantError(t, "neither file nor flag", err, "no pool: "+dir.Config()+" does not exist: name a pool there, or with --pool NAME=CIDR")
	if c, err := Load(dir, Flags{Remove: true}); err != nil || len(c.Pools) != 0 {
		t.Errorf("who only gives back: %+v, %v", c, err)
	}
	_, err = Load(dir, Flags{Pools: pools, File: string(dir)})
	wantError(t, "a folder", err, "is a directory")

	other := filepath.Join(string(dir), "other.yaml")
	nettest.Must(t, os.WriteFile(other, []byte(onePool), 0o644))
	if c, err := Load(write(t, full), Flags{File: other}); err != nil || len(c.Pools) != 1 {
		t.Errorf("the named one instead of the root's own: %+v, %v", c, err)
	}
}

func wantError(t *testing.T, name string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s:\ngot  %v\nwant %s", name, err, want)
	}
}

func TestLoadRefuses(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{onePool + "pool: x", `line 2: unknown key "pool": perhaps "pools" is meant`},
		{onePool + "# x\nmasquerade:\n  enable: true\n", `line 4: unknown key "enable": perhaps "enabled" is meant`},
		{"pools:\n- name: a\n  cidr: 10.0.0.0/24\nx: 1\n", `line 3: unknown key "cidr": perhaps "cidrs" is meant; line 4: unknown key "x"`},
		{onePool + "MTU: 1500", `line 2: unknown key "MTU": perhaps "mtu" is meant`},
		{onePool + "mtu: 1500\nmtu: 1400", `line 3: key "mtu" appears twice`},
		{"pools: 10.0.0.0/24", "line 1: `pools: 10.0.0.0/24`: want a list, such as [{name: default, cidrs: [10.88.0.0/16]}]"},
		{"pools:\n- 10.0.0.0/24", "line 2: `- 10.0.0.0/24`: want keys and values, such as {name: default, cidrs: [10.88.0.0/16]}"},
		{"pools:\n- name: a\n  cidrs: 10.0.0.0/24\n", "line 3: `cidrs: 10.0.0.0/24`: want a list, such as [10.88.0.0/16]"},
		{onePool + "mtu: large", "line 2: `mtu: large`: want a number"},
		{onePool + "forwarding: 3", "line 2: `forwarding: 3`: want true or false"},
		{onePool + "history: 5", "line 2: `history: 5`: want keys and values, such as {records: 10000}"},
		{onePool + "history: {records: -1}", "line 2: history.records: -1 is not within 0 to 100000"},
		{onePool + "history:\n  age: 7d\n", "line 3: history.age: \"7d\" is not a duration, such as 30s or 1m30s"},
		{onePool + "history: {age: 1s}", "history.age: 1s is not within 1m0s to 10000h0m0s"},
		{onePool + "masquerade: true", "line 2: `masquerade: true`: want keys and values, such as {enabled: true}"},
		{"[a]: 1\n", "line 1: `[a]: 1`: want a word"},
		{"<<: {mtu: large}", "line 1: `<<: {mtu: large}`: want a number"},
		{"pools:\n- &a {<<: [*a, *a]}\n", "yaml: line 2: merges (<<) are nested more than 16 deep"},
		{"blockedCIDRs: &a [" + strings.Repeat("10.0.0.0/8,", 2000) + "]\npools: [" + strings.Repeat("{cidrs: *a},", 2000) + "]", "yaml: line 1: aliases make the file too long"},
		{"[", "near line 1: did not find expected node content"},
		{"pools:\n- name: a\n\tcidrs: [10.0.0.0/24]\n", "yaml: line 3: is indented with a tab"},
		{"\tpools:\n", "yaml: line 1: is indented with a tab"},
		{"pools:\n- name: a\n  cidrs: [10.0.0.0/24\n", "yaml: near line 3: a [ without its ]"},
		{"pools:\n- name:a\n  cidrs: [10.0.0.0/24]\n", "yaml: near line 3: is a space missing after a colon"},
		{"pools:\n  a:\n    cidrs: [10.0.0.0/24]\n", "yaml: line 2: `a:`: want a list, such as [{name: default"},
		{"metrics: [a]", "yaml: line 1: `metrics: [a]`: want a word"},
		{"just text", "line 1: `just text`: want keys and values, such as mtu: 1500"},
		{onePool + "---\nmtu: 1500\n", "has more than one YAML document"},
		{onePool + "---\n{", "has more than one YAML document"},
		{strings.Repeat("#", maxFile+1), "larger than 1048576 bytes"},

		{"pools: [{name: a, cidrs: [10.0.0.0/24], segment: 10.0.0.0/16}]", "want keys and values, such as {subnets: [192.168.1.0/24], gateways: [192.168.1.1]}"},
		{"pools: [{name: a, cidrs: [10.0.0.0/24], segment: {subnet: 10.0.0.0/16}}]", `unknown key "subnet": perhaps "subnets" is meant`},
		{"pools: [{name: a, cidrs: [10.0.0.0/24], segment: {}}]", "pool a: segment has no subnet"},
		{"pools: [{name: a, cidrs: [10.0.0.0/24], segment: {subnets: [10.0.0.0]}}]", "pool a: segment.subnets: 10.0.0.0 has no prefix length"},
		{"pools:\n- name: a\n  cidrs: [10.0.0.0/24]\n  segment:\n    subnets: [10.0.0.0/16]\n    gateways: [10.0.0.1/16]\n", `line 6: pool a: segment.gateways: "10.0.0.1/16" is no address`},
		{"pools: [{name: a, cidrs: [10.0.0.0/24], segment: {subnets: [10.0.0.0/16], gateways: [10.0.0.7]}}]", "pool a: 10.0.0.0/24 has the address of the gateway 10.0.0.7"},
		{"pools: []", "no pool: name a pool under pools in"},
		{"pools: [{cidrs: [10.0.0.0/24]}]", `pool name "": want 1 to 63 of a-z`},
		{"pools: [{name: Blue, cidrs: [10.0.0.0/24]}]", `pool name "Blue": want 1 to 63 of a-z`},
		{"mtu: 1500\npools:\n- name: a\n", "yaml: line 3: pool a has no CIDR"},
		{"pools: [{name: a, cidrs: [10.0.0.0/24]}, {name: a, cidrs: [10.0.1.0/24]}]", "pool a: two pools have this name"},
		{"pools: [{name: a, cidrs: [10.0.0.0/33]}]", `line 1: pool a: "10.0.0.0/33" is not a CIDR, such as 10.88.0.0/16`},
		{"pools: [{name: a, cidrs: [10.0.0.0]}]", "line 1: pool a: 10.0.0.0 has no prefix length: is 10.0.0.0/32 meant?"},
		{"pools: [{name: a, cidrs: ['fe80::1%eth0']}]", `"fe80::1%eth0" is not a CIDR`},
		{"pools: [{name: a, cidrs: ['']}]", `"" is not a CIDR`},
		{"pools: [{name: a, cidrs: [10.0.0.9/24]}]", "pool a: 10.0.0.9/24 has bits set beyond /24: is 10.0.0.0/24 meant?"},
		{"pools:\n- name: a\n  cidrs:\n  - 10.1.0.0/24\n  - 10.0.0.9/24\n", "line 5: pool a: 10.0.0.9/24 has bits set beyond /24: is 10.0.0.0/24 meant?"},
		{"pools:\n- {name: a, cidrs: [10.0.0.0/24]}\n- {name: b, cidrs: [10.0.0.0/16]}", "yaml: line 3: pool a: 10.0.0.0/24 overlaps 10.0.0.0/16 of pool b"},
		{"pools: [{name: a, cidrs: [127.0.0.0/8]}]", "pool a: 127.0.0.0/8 cannot be used: 127.0.0.0/8 is loopback"},
		{"pools: [{name: a, cidrs: [10.0.0.0/24], cooldown: 0}]", `line 1: pool a: cooldown: 0 is not within 1ms to 24h0m0s`},

		{onePool + "cooldown: 30", `cooldown: "30" is not a duration, such as 30s`},
		{onePool + "cooldown: 0s", "yaml: line 2: cooldown: 0s is not within 1ms to 24h0m0s"},
		{onePool + "cooldown: -1s", "cooldown: -1s is not within"},
		{onePool + "cooldown: 25h", "cooldown: 25h is not within"},
		{onePool + "cooldown: ''", `cooldown: "" is not a duration`},
		{onePool + "sweepInterval: 500ms", "sweepInterval: 500ms is not within 1s to 1h0m0s"},
		{onePool + "mtu: 67", "yaml: line 2: mtu: 67 is not within 68 to 65535"},
		{onePool + "mtu: 65536", "mtu: 65536 is not within 68 to 65535"},
		{onePool + "mtu: -1", "mtu: -1 is not within"},
		{"pools: [{name: a, cidrs: ['fd00::/64']}]\nmtu: 1279", "mtu: 1279 is not within 1280 to 65535"},
		{onePool + "concurrency: 0", "yaml: line 2: concurrency: 0 is not within 1 to 4096"},
		{onePool + "concurrency: 4097", "concurrency: 4097 is not within 1 to 4096"},
		{onePool + "logLevel: loud", `yaml: line 2: logLevel: "loud" is not one of debug, info, warn, error`},
		{onePool + "logLevel: ''", `logLevel: "" is not one of`},
		{onePool + "metrics: 9477", `yaml: line 2: metrics: "9477": want [HOST]:PORT, such as 127.0.0.1:9477`},
		{onePool + "metrics: node:9477", `metrics: "node:9477": want an IP address and a port of 0 to 65535`},
		{onePool + "metrics: 127.0.0.1:65536", `metrics: "127.0.0.1:65536": want an IP address`},
		{onePool + "tracing:\n  endpoint: 127.0.0.1:4318", `yaml: line 3: tracing.endpoint: "127.0.0.1:4318": want http://HOST:PORT or`},
		{onePool + "tracing: {endpoint: 'grpc://a:4317'}", `tracing.endpoint: "grpc://a:4317": want http://`},
		{onePool + "tracing: {endpoint: 'http://:4318'}", `tracing.endpoint: "http://:4318": want http://HOST:PORT`},
		{onePool + "tracing: {endpoint: 'http://a:b@c:4318'}", "tracing.endpoint: want a URL without a user"},
		{onePool + "tracing: {endpoint: 'http://c:4318/?key=1'}", "want no query"},
		{onePool + "tracing:\n  sampling: 1.5", "yaml: line 3: tracing.sampling: 1.5 is not within 0 to 1"},
		{onePool + "tracing: {sampling: .nan}", "tracing.sampling: NaN is not within 0 to 1"},
		{onePool + "tracing: {sampling: half}", "line 2: `tracing: {sampling: half}`: want a number"},
		{onePool + "tracing: http://c:4318", "line 2: `tracing: http://c:4318`: want keys and values, such as {endpoint:"},
		{onePool + "blockedCIDRs: [169.254.0.0]", "yaml: line 2: blockedCIDRs: 169.254.0.0 has no prefix length: is 169.254.0.0/32 meant?"},
		{onePool + "blockedCIDRs: [169.254.1.0/16]", "yaml: line 2: blockedCIDRs: 169.254.1.0/16 has bits set beyond /16: is 169.254.0.0/16 meant?"},
		{onePool + "blockedCIDRs: 169.254.0.0/16", "line 2: `blockedCIDRs: 169.254.0.0/16`: want a list"},
		{onePool + "connections: 63", "yaml: line 2: connections: 63 is neither 0 nor within 64 to 16777216"},
		{onePool + "connections: -1", "connections: -1 is neither 0 nor within"},
		{onePool + "connections: 16777217", "connections: 16777217 is neither 0 nor within"},
		{onePool + "masquerade: {ports: 1023-65535}", "yaml: line 2: masquerade.ports: 1023-65535 begins below 1024"},
		{onePool + "masquerade: {ports: 2000-3022}", "masquerade.ports: 2000-3022 has fewer than 1024 ports"},
		{onePool + "masquerade: {ports: 3000-2000}", "masquerade.ports: 3000-2000 has fewer than 1024 ports"},
		{onePool + "masquerade: {ports: 1024-65536}", `masquerade.ports: "1024-65536" is not a range of ports, such as 1024-65535`},
		{onePool + "masquerade: {ports: 1024-32767}", "masquerade.ports: 1024-32767 has 31744 ports, and connections is 32768: one pod could take more than half of the ports for one destination; with this range, connections may be at most 15872"},
		{onePool + "connections: 1000\nmasquerade: {ports: 20000-21023}", "yaml: line 3: masquerade.ports: 20000-21023 has 1024 ports, and connections is 1000: one pod could take more than half of the ports for one destination; with this range, connections may be at most 512"},
		{onePool + "connections: 513\nmasquerade: {ports: 20000-21023}", "at most 512"},
		{onePool + "connections: 513\nmasquerade: {ports: 20000-21024}", "20000-21024 has 1025 ports, and connections is 513: one pod could take more than half of the ports for one destination; with this range, connections may be at most 512"},
		{onePool + "masquerade: {ports: 5000}", `masquerade.ports: "5000" is not a range of ports`},
		{onePool + "masquerade: {excludedCIDRs: [10.0.0.0]}", "yaml: line 2: masquerade.excludedCIDRs: 10.0.0.0 has no prefix length: is 10.0.0.0/32 meant?"},
		{onePool + "masquerade: {excludedCIDRs: [10.0.0.9/24]}", "yaml: line 2: masquerade.excludedCIDRs: 10.0.0.9/24 has bits set beyond /24: is 10.0.0.0/24 meant?"},
	} {
		dir := write(t, tt.text)
		c, err := Load(dir, Flags{})
		wantError(t, fmt.Sprintf("%.100s", tt.text), err, tt.want)
		if err != nil && (c != nil || !strings.Contains(err.Error(), dir.Config())) {
			t.Errorf("%.100s: %v: does not say which file", tt.text, err)
		}
	}
}

// One pod may have half of masquerade's ports. The range of all ports from 1024 on goes with any limit
// of connections, also with the default limit and with no limit at all.
func TestConnectionsWithPorts(t *testing.T) {
	for _, text := range []string{
		"connections: 512\nmasquerade: {ports: 20000-21023}", "connections: 0\nmasquerade: {ports: 20000-21023}",
		"masquerade: {ports: 1024-65535}", "connections: 32768\nmasquerade: {ports: 1024-65535}", "connections: 100000",
	} {
		if _, err := Load(write(t, onePool+text), Flags{}); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Deletions have places of their own, however small concurrency is.
func TestLeastConcurrency(t *testing.T) {
	for text, want := range map[string]int{"concurrency: 1": 4, "concurrency: 3": 4, "concurrency: 5": 5} {
		c, err := Load(write(t, "pools: [{name: a, cidrs: [10.88.0.0/16]}]\n"+text), Flags{})
		if err != nil || c.Concurrency != want {
			t.Errorf("%s: %+v, %v, want %d", text, c, err, want)
		}
	}
}

func TestFlagsRefused(t *testing.T) {
	mtu := write(t, "mtu: 1279").Config()
	for _, tt := range []struct {
		flags Flags
		want  string
	}{
		{Flags{Pools: []string{"a"}}, "--pool a: want NAME=CIDR[,CIDR...]"},
		{Flags{Pools: []string{"=10.0.0.0/24"}}, `--pool =10.0.0.0/24: pool name "": want 1 to 63`},
		{Flags{Pools: []string{"a="}}, `--pool a=: "" is not a CIDR`},
		{Flags{Pools: []string{"a=10.0.0.0/24,"}}, `"" is not a CIDR`},
		{Flags{Pools: []string{"a=10.0.0.0/24, 10.0.1.0/24"}}, `" 10.0.1.0/24" is not a CIDR`},
		{Flags{Pools: []string{"a=10.0.0.0/24,10.0.0.0/24"}}, "pool a lists 10.0.0.0/24 twice"},
		{Flags{Pools: []string{"a=10.0.0.1/24"}}, "is 10.0.0.0/24 meant?"},
		{Flags{Pools: []string{"a=10.0.0.0/24", "a=10.0.1.0/24"}}, "pool a: two pools have this name"},
		{Flags{Pools: []string{"x=10.88.1.0/24"}}, "pool x: 10.88.1.0/24 overlaps 10.88.0.0/16 of pool default"},
		{Flags{File: mtu, Pools: []string{"a=fd00::/64"}}, "config " + mtu + " and flags: mtu: 1279 is not within 1280 to 65535"},
		{Flags{Metrics: "9477"}, `--metrics "9477": want [HOST]:PORT`},
	} {
		_, err := Load(write(t, full), tt.flags)
		wantError(t, fmt.Sprint(tt.flags), err, tt.want)
	}
}

// Nodes of a cluster probe each other unless the file says otherwise.
func TestHealth(t *testing.T) {
	for text, want := range map[string]Health{
		"":                                     {true, 30 * time.Second, 9478},
		", health: {}":                         {true, 30 * time.Second, 9478},
		", health: {enabled: false}":           {false, 30 * time.Second, 9478},
		", health: {interval: 1m, port: 9000}": {true, time.Minute, 9000},
	} {
		c, err := Load(write(t, "kubernetes: {node: n"+text+"}\n"), Flags{})
		nettest.Must(t, err)
		if c.Kubernetes.Health != want {
			t.Errorf("%q: %+v, want %+v", text, c.Kubernetes.Health, want)
		}
	}
	for text, says := range map[string]string{
		"{interval: 1ms}": "kubernetes.health.interval", "{interval: 30}": "kubernetes.health.interval", "{port: 0}": "kubernetes.health.port: 0 is not within 1 to 65535",
		"{port: 65536}": "kubernetes.health.port", "{enabled: maybe}": "true or false", "{intervall: 1m}": "interval", "yes": "enabled: true",
	} {
		if _, err := Load(write(t, "kubernetes: {node: n, health: "+text+"}\n"), Flags{}); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "line 1") {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}

func TestNetworks(t *testing.T) {
	for text, want := range map[string]bool{"": false, ", networks: false": false, ", networks: true": true} {
		c, err := Load(write(t, "kubernetes: {node: n"+text+"}\n"), Flags{})
		nettest.Must(t, err)
		if c.Kubernetes.Networks != want {
			t.Errorf("%q: %v, want %v", text, c.Kubernetes.Networks, want)
		}
	}
	if _, err := Load(write(t, "kubernetes: {node: n, networks: 1}\n"), Flags{}); err == nil || !strings.Contains(err.Error(), "true or false") {
		t.Errorf("networks: 1: %v", err)
	}
}

func TestRouting(t *testing.T) {
	for text, want := range map[string]Kubernetes{
		"":                     {Routing: RoutingAuto, WireGuard: WireGuard{51820}},
		", routing: wireguard": {Routing: RoutingWireGuard, WireGuard: WireGuard{51820}},
		", routing: wireguard, wireguard: {port: 51821}": {Routing: RoutingWireGuard, WireGuard: WireGuard{51821}},
	} {
		c, err := Load(write(t, "kubernetes: {node: n"+text+"}\n"), Flags{})
		nettest.Must(t, err)
		if k := c.Kubernetes; k.Routing != want.Routing || k.WireGuard != want.WireGuard {
			t.Errorf("%q: %+v, want %+v", text, k, want)
		}
	}
	for text, says := range map[string]string{
		"routing: wire":        "line 1: kubernetes.routing: \"wire\" is none of auto, native, vxlan and wireguard",
		"wireguard: {port: 0}": "line 1: kubernetes.wireguard.port: 0 is not within 1 to 65535", "wireguard: {port: 65536}": "kubernetes.wireguard.port",
		"wireguard: {key: x}": "unknown key \"key\"", "wireguard: 51820": "want keys and values, such as {port: 51820}",
	} {
		_, err := Load(write(t, "kubernetes: {node: n, "+text+"}\n"), Flags{})
		wantError(t, text, err, says)
	}
}
