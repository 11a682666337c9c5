package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/root"
)

// Defaults of what a configuration leaves out.
const (
	DefaultCooldown      = 30 * time.Second
	DefaultConcurrency   = 64
	DefaultSweepInterval = 30 * time.Second
)

// Bounds of numbers.
const (
	minMTU, maxMTU     = 1280, 65535 // bytes; RFC 8200, section 5; what a veth takes
	maxConcurrency     = 4096
	minSweep, maxSweep = time.Second, time.Hour
	maxCooldown        = 24 * time.Hour
)

// file is berthd.yaml.
type file struct {
	Pools         []filePool     `json:"pools"`
	Cooldown      *string        `json:"cooldown"`
	MTU           int            `json:"mtu"`
	Masquerade    fileMasquerade `json:"masquerade"`
	Concurrency   *int           `json:"concurrency"`
	Metrics       string         `json:"metrics"`
	LogLevel      string         `json:"logLevel"`
	SweepInterval *string        `json:"sweepInterval"`
	Forwarding    *bool          `json:"forwarding"`
}

type filePool struct {
	Name     string   `json:"name"`
	CIDRs    []string `json:"cidrs"`
	Cooldown *string  `json:"cooldown"`
}

type fileMasquerade struct {
	Enabled       *bool    `json:"enabled"`
	ExcludedCIDRs []string `json:"excludedCIDRs"`
}

// Load reads the configuration of an agent in dir. A file that flags name must
// be there; the root's own need not.
func Load(dir root.Dir, flags Flags) (*Config, error) {
	path := flags.File
	if path == "" {
		path = dir.Config()
	}
	raw, err := os.ReadFile(path)
	if err != nil && (flags.File != "" || !errors.Is(err, fs.ErrNotExist)) {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	c, err := Parse(raw, flags)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// Parse makes a configuration of a file's text, which may be empty, and flags.
func Parse(raw []byte, flags Flags) (*Config, error) {
	var f file
	if err := yaml.UnmarshalStrict(raw, &f); err != nil {
		return nil, err
	}
	c := &Config{MTU: f.MTU, Metrics: f.Metrics, Forwarding: true, Concurrency: DefaultConcurrency}
	cooldown, err := duration("cooldown", f.Cooldown, DefaultCooldown, 0, maxCooldown)
	if err != nil {
		return nil, err
	}
	if c.SweepInterval, err = duration("sweepInterval", f.SweepInterval, DefaultSweepInterval, minSweep, maxSweep); err != nil {
		return nil, err
	}
	if c.Pools, err = pools(f.Pools, cooldown, flags.Pools); err != nil {
		return nil, err
	}
	if c.Masquerade, err = f.Masquerade.parse(); err != nil {
		return nil, err
	}
	if c.MTU != 0 && (c.MTU < minMTU || c.MTU > maxMTU) {
		return nil, fmt.Errorf("mtu: %d is not 0 (the uplink's) or %d to %d bytes", c.MTU, minMTU, maxMTU)
	}
	if f.Concurrency != nil {
		if c.Concurrency = *f.Concurrency; c.Concurrency < 1 || c.Concurrency > maxConcurrency {
			return nil, fmt.Errorf("concurrency: %d is not 1 to %d", c.Concurrency, maxConcurrency)
		}
	}
	if f.LogLevel != "" {
		if err := c.LogLevel.UnmarshalText([]byte(f.LogLevel)); err != nil {
			return nil, fmt.Errorf("logLevel: %q is not debug, info, warn or error", f.LogLevel)
		}
	}
	if f.Forwarding != nil {
		c.Forwarding = *f.Forwarding
	}
	if flags.Metrics != "" {
		c.Metrics = flags.Metrics
	}
	return c, nil
}

// pools joins the file's pools with the flags', which come first, and replace
// those of their names.
func pools(fromFile []filePool, cooldown time.Duration, fromFlags []string) ([]ipam.PoolConfig, error) {
	var all []ipam.PoolConfig
	named := map[string]bool{}
	for _, text := range fromFlags {
		p, err := ParsePool(text)
		if err != nil {
			return nil, err
		}
		p.Cooldown = cooldown
		named[p.Name] = true
		all = append(all, p)
	}
	for i, fp := range fromFile {
		if named[fp.Name] {
			continue
		}
		where := fmt.Sprintf("pools[%d]", i)
		rest, err := duration(where+".cooldown", fp.Cooldown, cooldown, 0, maxCooldown)
		if err != nil {
			return nil, err
		}
		cidrs, err := prefixes(where+".cidrs", fp.CIDRs)
		if err != nil {
			return nil, err
		}
		all = append(all, ipam.PoolConfig{Name: fp.Name, CIDRs: cidrs, Cooldown: rest})
	}
	if len(all) == 0 {
		return nil, errors.New("no pool: name one under pools, or with --pool NAME=CIDR")
	}
	return all, ipam.Validate(all)
}

// ParsePool reads a --pool flag: NAME=CIDR[,CIDR...].
func ParsePool(text string) (ipam.PoolConfig, error) {
	name, list, ok := strings.Cut(text, "=")
	if !ok || !ipam.ValidName(name) {
		return ipam.PoolConfig{}, fmt.Errorf("pool %.100q: expected NAME=CIDR[,CIDR...] with a name of 1 to 63 of a-z, 0-9 and -", text)
	}
	cidrs, err := prefixes("pool "+name, strings.Split(list, ","))
	return ipam.PoolConfig{Name: name, CIDRs: cidrs}, err
}

func (m fileMasquerade) parse() (Masquerade, error) {
	excluded, err := prefixes("masquerade.excludedCIDRs", m.ExcludedCIDRs)
	return Masquerade{Enabled: m.Enabled == nil || *m.Enabled, ExcludedCIDRs: excluded}, err
}

func prefixes(where string, texts []string) ([]netip.Prefix, error) {
	var ps []netip.Prefix
	for _, t := range texts {
		p, err := netip.ParsePrefix(t)
		if err != nil {
			return nil, fmt.Errorf("%s: %.100q is not a CIDR such as 10.88.0.0/16 or fd00:88::/64", where, t)
		}
		ps = append(ps, p)
	}
	return ps, nil
}

func duration(where string, text *string, absent, low, high time.Duration) (time.Duration, error) {
	if text == nil {
		return absent, nil
	}
	d, err := time.ParseDuration(*text)
	if err != nil || d < low || d > high {
		return 0, fmt.Errorf("%s: %.50q is not a duration from %v to %v, such as 30s", where, *text, low, high)
	}
	return d, nil
}
