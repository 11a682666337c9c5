package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/ipam"
)

// Bounds of values.
const (
	minMTU         = 68    // RFC 791, 3.2
	minMTU6        = 1280  // RFC 8200, 5: the kernel removes IPv6 from a link with less
	maxMTU         = 65535 // of a veth
	maxConcurrency = 4096
	maxHistory     = 100_000 // records, of 1 KB
	minConnections = 64
	maxConnections = 1 << 24
	minPort        = 1024 // a server may believe that a client with a port below this one is root
	minPorts       = 1024 // that masquerade needs
)

// bounds are the least and the greatest that a duration can be.
type bounds struct{ least, most time.Duration }

var (
	cooldownBounds = bounds{time.Millisecond, 24 * time.Hour}
	historyBounds  = bounds{time.Minute, 10000 * time.Hour}
	sweepBounds    = bounds{time.Second, time.Hour}
	healthBounds   = bounds{time.Second, time.Hour}
)

// ParsePool reads a pool in the form of --pool: NAME=CIDR[,CIDR...].
func ParsePool(s string) (ipam.PoolConfig, error) {
	name, list, ok := strings.Cut(s, "=")
	if !ok {
		return ipam.PoolConfig{}, errors.New("want NAME=CIDR[,CIDR...]")
	}
	p := ipam.PoolConfig{Name: name}
	for cidr := range strings.SplitSeq(list, ",") {
		prefix, err := parseCIDR(cidr)
		if err != nil {
			return ipam.PoolConfig{}, err
		}
		p.CIDRs = append(p.CIDRs, prefix)
	}
	return p, ipam.Validate([]ipam.PoolConfig{p})
}

func parseCIDR(s string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p, nil
	}
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.Prefix{}, fmt.Errorf("%s has no prefix length: is %s/%d meant?", s, s, a.BitLen())
	}
	return netip.Prefix{}, fmt.Errorf("%.80q is not a CIDR, such as 10.88.0.0/16", s)
}

// parse reads the duration of a key. If the file lacks the key, parse returns its parameter `otherwise`.
func (b bounds) parse(key string, s said[string], otherwise time.Duration) (time.Duration, error) {
	if s.value == nil {
		return otherwise, nil
	}
	d, err := time.ParseDuration(*s.value)
	switch {
	case err != nil:
		return 0, s.wrong(fmt.Errorf("%s: %.80q is not a duration, such as 30s or 1m30s", key, *s.value))
	case d < b.least || d > b.most:
		return 0, s.wrong(fmt.Errorf("%s: %.80s is not within %s to %s", key, *s.value, b.least, b.most))
	}
	return d, nil
}

// checkPorts refuses a range of ports for masquerade if one pod may take more than half of the
// range for one destination. The range of all ports from 1024 on goes with any limit of connections:
// the default limit is 512 more than half of this range, and an operator who wants more connections
// for pods with many destinations has no more ports to give.
func (c *Config) checkPorts() error {
	p := c.Masquerade.Ports
	half := p.Len() / 2
	if p == (Ports{minPort, 65535}) || c.Connections <= half {
		return nil
	}
	return fmt.Errorf("masquerade.ports: %d-%d has %d ports, and connections is %d: one pod could take more than half of the ports for one destination; with this range, connections may be at most %d",
		p.First, p.Last, p.Len(), c.Connections, half)
}

// parsePorts reads a range of ports for masquerade.
func parsePorts(s string) (Ports, error) {
	low, high, _ := strings.Cut(s, "-")
	first, err := strconv.ParseUint(low, 10, 16)
	last, err2 := strconv.ParseUint(high, 10, 16)
	p := Ports{uint16(first), uint16(last)}
	switch {
	case err != nil || err2 != nil:
		return p, fmt.Errorf("%.80q is not a range of ports, such as 1024-65535", s)
	case p.First < minPort:
		return p, fmt.Errorf("%s begins below %d", s, minPort)
	case p.Len() < minPorts:
		return p, fmt.Errorf("%s has fewer than %d ports", s, minPorts)
	}
	return p, nil
}

func parseLogLevel(s string) (slog.Level, error) {
	for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if strings.EqualFold(s, l.String()) {
			return l, nil
		}
	}
	return 0, fmt.Errorf("logLevel: %.80q is not one of debug, info, warn, error", s)
}

// parseMetrics reads a TCP address. If it names no host, the loopback is meant: leaving out
// the host must not open the metrics to the world.
func parseMetrics(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", fmt.Errorf("%.80q: want [HOST]:PORT, such as 127.0.0.1:9477", s)
	}
	if host == "" || host == "localhost" {
		host = "127.0.0.1"
	}
	a, err := netip.ParseAddrPort(net.JoinHostPort(host, port))
	if err != nil {
		return "", fmt.Errorf("%.80q: want an IP address and a port of 0 to 65535", s)
	}
	return a.String(), nil
}

// parseEndpoint reads the URL of a collector. Without a path, OTLP's own is meant.
func parseEndpoint(s string) (string, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "":
		return "", fmt.Errorf("%.200q: want http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:4318", s)
	case u.User != nil:
		return "", errors.New("want a URL without a user and a password: anybody who may read the agent's status or log would see them")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", fmt.Errorf("%.200q: want no query and no fragment", s)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	return u.String(), nil
}

// nodeName is a DNS subdomain (RFC 1123), as Kubernetes wants the name of a Node.
var nodeName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// checkNode checks the name of a Node object.
func checkNode(name string) error {
	if len(name) > 253 || !nodeName.MatchString(name) {
		return fmt.Errorf("%.80q is no name of a Node: want the node's name in the cluster, such as node-1, here or in $%s", name, NodeVariable)
	}
	return nil
}

// checkMTU checks the MTU against what the pools' address families need.
func (c *Config) checkMTU() error {
	least := minMTU
	for _, p := range c.Pools {
		for _, cidr := range p.CIDRs {
			if cidr.Addr().Is6() {
				least = minMTU6
			}
		}
	}
	if c.MTU != 0 && (c.MTU < least || c.MTU > maxMTU) {
		return fmt.Errorf("mtu: %d is not within %d to %d", c.MTU, least, maxMTU)
	}
	return nil
}
