package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/berth-net/berth/internal/ipam"
)

// DefaultCooldown is longer than kernels keep fragments: 60 s (net.ipv6.ip6frag_time).
const DefaultCooldown = 65 * time.Second

// DefaultHistory is what is kept of attachments that are gone.
var DefaultHistory = History{Records: 10_000, Age: 7 * 24 * time.Hour}

// Other defaults, for keys that the file lacks.
const (
	defaultConcurrency   = 64
	leastConcurrency     = 4 // a quarter of the places is for deletions alone (internal/daemon/server)
	defaultSweepInterval = 30 * time.Second
	defaultLogLevel      = "info"
	defaultConnections   = 32768 // an eighth of what most nodes track, half of a node's ports
	defaultPorts         = "1024-65535"
)

// defaultBlocked are the addresses at which clouds give credentials to anybody who asks
// from the node: the link-local addresses, to which no router may forward (RFC 3927, 2.7),
// and the other addresses of Amazon, Google, Oracle and Alibaba:
//
//   - https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
//   - https://github.com/GoogleCloudPlatform/k8s-config-connector (its tests have the address)
//   - https://github.com/oracle/oci-python-sdk/blob/master/src/oci/auth/signers/instance_principals_security_token_signer.py
//   - https://www.alibabacloud.com/help/en/ecs/user-guide/obtain-a-temporary-authorization-token
//     and, for IPv6, the tests of cloudinit.net.ephemeral in https://github.com/canonical/cloud-init
//
// Azure's 168.63.129.16 is not among them: Azure gives credentials at 169.254.169.254, and
// its health checks come from 168.63.129.16, so that pods' answers to them would be blocked
// (https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16).
var defaultBlocked = []string{
	"169.254.0.0/16", "fd00:ec2::254/128", "fd20:ce::254/128", "fd00:c1::a9fe:a9fe/128",
	"100.100.100.200/32", "fd00:100::100:200/128",
}

// file is the content of berthd.yaml. Durations are text, so that a number without a unit
// is not taken for nanoseconds.
type file struct {
	Pools         said[[]said[filePool]]
	Cooldown      said[string]
	MTU           said[int]
	Masquerade    fileMasquerade
	BlockedCIDRs  said[[]said[string]]
	Connections   said[int]
	Concurrency   said[int]
	Metrics       said[string]
	Tracing       fileTracing
	LogLevel      said[string]
	SweepInterval said[string]
	Forwarding    said[bool]
	History       fileHistory
	FullNotReady  said[bool]
	Kubernetes    said[fileKubernetes]
}

type filePool struct {
	Name     said[string]
	CIDRs    said[[]said[string]]
	Cooldown said[string]
	Segment  said[fileSegment]
}

type fileHistory struct {
	Records said[int]
	Age     said[string]
}

type fileMasquerade struct {
	Enabled         said[bool]
	ExcludedCIDRs   said[[]said[string]]
	Ports           said[string]
	IPMasqAgentFile said[string]
}

type fileTracing struct {
	Endpoint said[string]
	Sampling said[float64]
}

// Examples for errors about a value of the wrong type.
const (
	examplePool  = "{name: default, cidrs: [10.88.0.0/16]}"
	exampleCIDRs = "[10.88.0.0/16]"
)

func (f *file) take(r *reader, n *yaml.Node) {
	r.keys(n, "mtu: 1500", map[string]take{
		"pools":         list(&f.Pools, "["+examplePool+"]", takePool),
		"cooldown":      scalar(&f.Cooldown),
		"mtu":           scalar(&f.MTU),
		"masquerade":    f.Masquerade.take,
		"blockedCIDRs":  list(&f.BlockedCIDRs, exampleCIDRs, scalar),
		"connections":   scalar(&f.Connections),
		"concurrency":   scalar(&f.Concurrency),
		"metrics":       scalar(&f.Metrics),
		"tracing":       f.Tracing.take,
		"logLevel":      scalar(&f.LogLevel),
		"sweepInterval": scalar(&f.SweepInterval),
		"forwarding":    scalar(&f.Forwarding),
		"history":       f.History.take,
		"fullNotReady":  scalar(&f.FullNotReady),
		"kubernetes":    takeKubernetes(&f.Kubernetes),
	})
}

func takePool(s *said[filePool]) take {
	return func(r *reader, n *yaml.Node) {
		p := new(filePool)
		r.keys(n, examplePool, map[string]take{
			"name":     scalar(&p.Name),
			"cidrs":    list(&p.CIDRs, exampleCIDRs, scalar),
			"cooldown": scalar(&p.Cooldown),
			"segment":  takeSegment(&p.Segment),
		})
		*s = said[filePool]{p, n.Line}
	}
}

func (m *fileMasquerade) take(r *reader, n *yaml.Node) {
	r.keys(n, "{enabled: true}", map[string]take{
		"enabled":         scalar(&m.Enabled),
		"excludedCIDRs":   list(&m.ExcludedCIDRs, exampleCIDRs, scalar),
		"ports":           scalar(&m.Ports),
		"ipMasqAgentFile": scalar(&m.IPMasqAgentFile),
	})
}

func (t *fileTracing) take(r *reader, n *yaml.Node) {
	r.keys(n, `{endpoint: "http://127.0.0.1:4318"}`, map[string]take{
		"endpoint": scalar(&t.Endpoint),
		"sampling": scalar(&t.Sampling),
	})
}

func (h *fileHistory) take(r *reader, n *yaml.Node) {
	r.keys(n, "{records: 10000}", map[string]take{
		"records": scalar(&h.Records),
		"age":     scalar(&h.Age),
	})
}

// parse reads a file's text; an empty one means all defaults. It also returns the cooldown
// of pools that have none of their own.
func parse(text []byte) (*Config, time.Duration, error) {
	var f file
	if err := decode(text, f.take); err != nil {
		return nil, 0, err
	}
	c := &Config{
		MTU:         f.MTU.or(0),
		Masquerade:  Masquerade{Enabled: f.Masquerade.Enabled.or(true)},
		Concurrency: f.Concurrency.or(defaultConcurrency),
		Forwarding:  f.Forwarding.or(true),
		Connections: f.Connections.or(defaultConnections),

		FullNotReady: f.FullNotReady.or(false),
		Tracing:      Tracing{Sampling: f.Tracing.Sampling.or(1)},
	}
	c.Masquerade.IPMasqAgentFile = f.Masquerade.IPMasqAgentFile.or("")
	if err := checkMasqAgentFile(f.Masquerade.IPMasqAgentFile); err != nil {
		return nil, 0, err
	}
	cooldown, err := cooldownBounds.parse("cooldown", f.Cooldown, DefaultCooldown)
	if err != nil {
		return nil, 0, err
	}
	for _, p := range f.Pools.or(nil) {
		pool, err := p.or(filePool{}).pool(cooldown)
		if err != nil {
			return nil, 0, err
		}
		c.Pools = append(c.Pools, pool)
		if err := ipam.Validate(c.Pools); err != nil {
			return nil, 0, p.wrong(err)
		}
	}
	if c.Masquerade.ExcludedCIDRs, err = parseCIDRs("masquerade.excludedCIDRs", f.Masquerade.ExcludedCIDRs.or(nil)); err != nil {
		return nil, 0, err
	}
	if c.Masquerade.Ports, err = parsePorts(f.Masquerade.Ports.or(defaultPorts)); err != nil {
		return nil, 0, f.Masquerade.Ports.wrong(fmt.Errorf("masquerade.ports: %w", err))
	}
	if err := c.checkPorts(); err != nil {
		return nil, 0, f.Masquerade.Ports.wrong(err)
	}
	if c.BlockedCIDRs, err = parseCIDRs("blockedCIDRs", f.BlockedCIDRs.or(saying(defaultBlocked))); err != nil {
		return nil, 0, err
	}
	if c.SweepInterval, err = sweepBounds.parse("sweepInterval", f.SweepInterval, defaultSweepInterval); err != nil {
		return nil, 0, err
	}
	c.History.Records = f.History.Records.or(DefaultHistory.Records)
	if n := c.History.Records; n < 0 || n > maxHistory {
		return nil, 0, f.History.Records.wrong(fmt.Errorf("history.records: %d is not within 0 to %d", n, maxHistory))
	}
	if c.History.Age, err = historyBounds.parse("history.age", f.History.Age, DefaultHistory.Age); err != nil {
		return nil, 0, err
	}
	if c.LogLevel, err = parseLogLevel(f.LogLevel.or(defaultLogLevel)); err != nil {
		return nil, 0, f.LogLevel.wrong(err)
	}
	if s := f.Metrics.or(""); s != "" {
		if c.Metrics, err = parseMetrics(s); err != nil {
			return nil, 0, f.Metrics.wrong(fmt.Errorf("metrics: %w", err))
		}
	}
	if s := f.Tracing.Endpoint.or(""); s != "" {
		if c.Tracing.Endpoint, err = parseEndpoint(s); err != nil {
			return nil, 0, f.Tracing.Endpoint.wrong(fmt.Errorf("tracing.endpoint: %w", err))
		}
	}
	if n := c.Tracing.Sampling; !(n >= 0 && n <= 1) { // and no NaN
		return nil, 0, f.Tracing.Sampling.wrong(fmt.Errorf("tracing.sampling: %v is not within 0 to 1", n))
	}
	if n := c.Concurrency; n < 1 || n > maxConcurrency {
		return nil, 0, f.Concurrency.wrong(fmt.Errorf("concurrency: %d is not within 1 to %d", n, maxConcurrency))
	}
	c.Concurrency = max(c.Concurrency, leastConcurrency)
	if k := f.Kubernetes; k.value != nil {
		if c.Kubernetes, err = k.value.check(); err != nil {
			return nil, 0, err
		}
	}
	if n := c.Connections; n != 0 && (n < minConnections || n > maxConnections) {
		return nil, 0, f.Connections.wrong(fmt.Errorf("connections: %d is neither 0 nor within %d to %d", n, minConnections, maxConnections))
	}
	return c, cooldown, f.MTU.wrong(c.checkMTU())
}

// parseCIDRs reads a key's list of CIDRs.
func parseCIDRs(key string, list []said[string]) ([]netip.Prefix, error) {
	var cidrs []netip.Prefix
	for _, s := range list {
		cidr, err := parseCIDR(s.or(""))
		if err == nil && cidr != cidr.Masked() {
			err = fmt.Errorf("%s has bits set beyond /%d: is %s meant?", cidr, cidr.Bits(), cidr.Masked())
		}
		if err != nil {
			return nil, s.wrong(fmt.Errorf("%s: %w", key, err))
		}
		cidrs = append(cidrs, cidr)
	}
	return cidrs, nil
}

// saying returns a list in the form in which it is read from a file.
func saying(list []string) []said[string] {
	var words []said[string]
	for _, s := range list {
		words = append(words, said[string]{value: &s})
	}
	return words
}

func (p filePool) pool(cooldown time.Duration) (ipam.PoolConfig, error) {
	out := ipam.PoolConfig{Name: p.Name.or("")}
	for _, s := range p.CIDRs.or(nil) {
		cidr, err := parseCIDR(s.or(""))
		if err == nil {
			err = ipam.CheckCIDR(cidr)
		}
		if err != nil {
			return out, s.wrong(fmt.Errorf("pool %.80s: %w", out.Name, err))
		}
		out.CIDRs = append(out.CIDRs, cidr)
	}
	var err error
	if s := p.Segment; s.value != nil {
		if out.Segment, err = s.value.segment(out.Name); err != nil {
			return out, err
		}
	}
	out.Cooldown, err = cooldownBounds.parse(fmt.Sprintf("pool %.80s: cooldown", out.Name), p.Cooldown, cooldown)
	return out, err
}

// decode reads the one YAML document of a file, if the file has any. Its error lists, with their lines, all keys
// that are unknown or there twice, and all values of the wrong type.
func decode(text []byte, to take) error {
	var document yaml.Node
	r := reader{lines: strings.Split(string(text), "\n")}
	d := yaml.NewDecoder(bytes.NewReader(text))
	switch err := d.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return slip(err, r.lines)
	}
	r.value(document.Content[0], to)
	if err := r.err(); err != nil {
		return err
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return errors.New("has more than one YAML document")
	}
	return nil
}
