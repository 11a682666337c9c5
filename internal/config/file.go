package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"go.yaml.in/yaml/v2"

	"github.com/berth-net/berth/internal/ipam"
)

// What holds where the file says nothing.
const (
	defaultCooldown      = 30 * time.Second
	defaultConcurrency   = 64
	defaultSweepInterval = 30 * time.Second
	defaultLogLevel      = "info"
)

// file is berthd.yaml. A pointer tells what is not said from a zero. Durations
// are text, so that a number without a unit is no number of nanoseconds.
type file struct {
	Pools         []filePool     `yaml:"pools"`
	Cooldown      *string        `yaml:"cooldown"`
	MTU           int            `yaml:"mtu"`
	Masquerade    fileMasquerade `yaml:"masquerade"`
	Concurrency   *int           `yaml:"concurrency"`
	Metrics       string         `yaml:"metrics"`
	LogLevel      *string        `yaml:"logLevel"`
	SweepInterval *string        `yaml:"sweepInterval"`
	Forwarding    *bool          `yaml:"forwarding"`
}

type filePool struct {
	Name     string   `yaml:"name"`
	CIDRs    []string `yaml:"cidrs"`
	Cooldown *string  `yaml:"cooldown"`
}

type fileMasquerade struct {
	Enabled       *bool    `yaml:"enabled"`
	ExcludedCIDRs []string `yaml:"excludedCIDRs"`
}

// parse reads a file's text; an empty one is all defaults. It also returns the
// cooldown of pools that have none of their own.
func parse(text []byte) (*Config, time.Duration, error) {
	f, err := decode(text)
	if err != nil {
		return nil, 0, err
	}
	c := &Config{
		MTU:         f.MTU,
		Masquerade:  Masquerade{Enabled: or(f.Masquerade.Enabled, true)},
		Concurrency: or(f.Concurrency, defaultConcurrency),
		Forwarding:  or(f.Forwarding, true),
	}
	cooldown, err := cooldownBounds.parse("cooldown", f.Cooldown, defaultCooldown)
	if err != nil {
		return nil, 0, err
	}
	for i, p := range f.Pools {
		pool, err := p.pool(cooldown)
		if err != nil {
			return nil, 0, fmt.Errorf("pools[%d] (%.80s): %w", i, p.Name, err)
		}
		c.Pools = append(c.Pools, pool)
	}
	for _, s := range f.Masquerade.ExcludedCIDRs {
		cidr, err := parseCIDR(s)
		if err != nil {
			return nil, 0, fmt.Errorf("masquerade.excludedCIDRs: %w", err)
		}
		c.Masquerade.ExcludedCIDRs = append(c.Masquerade.ExcludedCIDRs, cidr)
	}
	if c.SweepInterval, err = sweepBounds.parse("sweepInterval", f.SweepInterval, defaultSweepInterval); err != nil {
		return nil, 0, err
	}
	if c.LogLevel, err = parseLogLevel(or(f.LogLevel, defaultLogLevel)); err != nil {
		return nil, 0, err
	}
	if f.Metrics != "" {
		if c.Metrics, err = parseMetrics(f.Metrics); err != nil {
			return nil, 0, fmt.Errorf("metrics: %w", err)
		}
	}
	return c, cooldown, nil
}

func (p filePool) pool(cooldown time.Duration) (ipam.PoolConfig, error) {
	out := ipam.PoolConfig{Name: p.Name}
	for _, s := range p.CIDRs {
		cidr, err := parseCIDR(s)
		if err != nil {
			return out, err
		}
		out.CIDRs = append(out.CIDRs, cidr)
	}
	var err error
	out.Cooldown, err = cooldownBounds.parse("cooldown", p.Cooldown, cooldown)
	return out, err
}

// or returns what is said, or else the default.
func or[T any](said *T, otherwise T) T {
	if said != nil {
		return *said
	}
	return otherwise
}

// decode reads the one YAML document of a file. All keys that are unknown,
// said twice or of a wrong type are told at once, with their lines.
func decode(text []byte) (f file, err error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.SetStrict(true)
	switch err := d.Decode(&f); {
	case errors.Is(err, io.EOF):
		return file{}, nil
	case err != nil:
		return file{}, plain(err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return file{}, errors.New("has more than one YAML document")
	}
	return f, nil
}

// goTypes are the words for what the YAML package says in Go's.
var goTypes = []struct {
	goes *regexp.Regexp
	ours string
}{
	{regexp.MustCompile(`field (.*) not found in type config\.\w+`), `unknown key "$1"`},
	{regexp.MustCompile(`field (.*) already set in type config\.\w+`), `key "$1" is there twice`},
	{regexp.MustCompile(`cannot unmarshal !!(\w+) (.*)into \[\]`), `$1 ${2}where a list belongs, of `},
	{regexp.MustCompile(`cannot unmarshal !!(\w+) (.*)into`), `$1 ${2}where this belongs:`},
	{regexp.MustCompile(`config\.\w+`), `keys and values`},
}

// plain says a YAML error in the file's words.
func plain(err error) error {
	var many *yaml.TypeError
	if !errors.As(err, &many) {
		return errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	said := make([]string, len(many.Errors))
	for i, s := range many.Errors {
		for _, t := range goTypes {
			s = t.goes.ReplaceAllString(s, t.ours)
		}
		said[i] = s
	}
	return errors.New(strings.Join(said, "; "))
}
