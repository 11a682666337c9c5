package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/berth-net/berth/internal/root"
)

// MasqAgent is what a file in the format of ip-masq-agent's configuration says (kubernetes-sigs/ip-masq-agent,
// MasqConfig): YAML or JSON, the same keys, and the same defaults for keys that the file lacks.
type MasqAgent struct {
	NonMasqueradeCIDRs []netip.Prefix // traffic to these keeps pods' addresses
	MasqLinkLocal      bool           // traffic to 169.254.0.0/16 does not
	MasqLinkLocalIPv6  bool           // traffic to fe80::/10 does not
	ResyncInterval     time.Duration  // between two readings of the file
	Absent             bool           // there is no such file: all the rest is its defaults
}

// What ip-masq-agent does unless its file says otherwise.
var (
	defaultNonMasq   = []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"} // RFC 1918
	linkLocal4       = netip.MustParsePrefix("169.254.0.0/16")
	linkLocal6       = netip.MustParsePrefix("fe80::/10")
	resyncBounds     = bounds{time.Second, 24 * time.Hour}
	exampleMasqAgent = "nonMasqueradeCIDRs: " + exampleCIDRs
)

const defaultResync, defaultCIDRLimit = time.Minute, 64

// Excluded lists all CIDRs to which pods' traffic keeps pods' addresses: those of berthd.yaml, and those of ip-masq-agent's file.
func (m Masquerade) Excluded() []netip.Prefix {
	a := m.MasqAgent
	if a == nil {
		return m.ExcludedCIDRs
	}
	all := slices.Concat(m.ExcludedCIDRs, a.NonMasqueradeCIDRs)
	if !a.MasqLinkLocal {
		all = append(all, linkLocal4)
	}
	if !a.MasqLinkLocalIPv6 {
		all = append(all, linkLocal6)
	}
	return all
}

// ResyncMasqAgent reads ip-masq-agent's file again. It returns c itself if the file says what it said, or is wrong, and otherwise
// a configuration that differs from c in what the file says.
func (c *Config) ResyncMasqAgent() (*Config, error) {
	if c.Masquerade.IPMasqAgentFile == "" {
		return c, nil
	}
	a, err := loadMasqAgent(c.Masquerade.IPMasqAgentFile)
	if err != nil || reflect.DeepEqual(a, c.Masquerade.MasqAgent) {
		return c, err
	}
	next := *c
	next.Masquerade.MasqAgent, next.Masquerade.MasqAgentErr = a, nil
	return &next, nil
}

// KeepMasqAgent has a configuration whose ip-masq-agent's file is wrong go on with what that file said before.
func (c *Config) KeepMasqAgent(before *Config) {
	if is, was := &c.Masquerade, before.Masquerade; is.MasqAgentErr != nil && is.IPMasqAgentFile == was.IPMasqAgentFile {
		is.MasqAgent = was.MasqAgent
	}
}

// loadMasqAgent reads ip-masq-agent's file. A file that does not exist says what an empty one says.
func loadMasqAgent(path string) (*MasqAgent, error) {
	text, err := read(path, root.Open)
	absent := errors.Is(err, fs.ErrNotExist)
	if err != nil && !absent {
		return nil, fmt.Errorf("reading masquerade.ipMasqAgentFile: %w", err)
	}
	a, err := parseMasqAgent(text)
	if err != nil {
		return nil, fmt.Errorf("masquerade.ipMasqAgentFile %s: %w", path, err)
	}
	a.Absent = absent
	return a, nil
}

// takeMasqAgent reads ip-masq-agent's file for the first time. A wrong file keeps no agent from starting: until it is right, its
// defaults hold, as they do with ip-masq-agent.
func (m *Masquerade) takeMasqAgent() {
	if m.IPMasqAgentFile == "" {
		return
	}
	if m.MasqAgent, m.MasqAgentErr = loadMasqAgent(m.IPMasqAgentFile); m.MasqAgentErr != nil {
		m.MasqAgent, _ = parseMasqAgent(nil)
	}
}

// checkMasqAgentFile refuses a path that depends on the folder in which berthd was started.
func checkMasqAgentFile(s said[string]) error {
	if path := s.or(""); path != "" && !filepath.IsAbs(path) {
		return s.wrong(fmt.Errorf("masquerade.ipMasqAgentFile: %.200q is no absolute path", path))
	}
	return nil
}

type fileMasqAgent struct {
	NonMasqueradeCIDRs said[[]said[string]]
	CIDRLimit          said[int]
	MasqLinkLocal      said[bool]
	MasqLinkLocalIPv6  said[bool]
	ResyncInterval     said[string]
}

func (f *fileMasqAgent) take(r *reader, n *yaml.Node) {
	const cidrs = "nonMasqueradeCIDRs"
	if n.Kind == yaml.MappingNode {
		for i := 0; i < len(n.Content); i += 2 {
			// ip-masq-agent takes null for an empty list, and not for a key that is absent.
			if key, value := n.Content[i], n.Content[i+1]; key.Value == cidrs && value.ShortTag() == "!!null" {
				f.NonMasqueradeCIDRs = said[[]said[string]]{new([]said[string]), value.Line}
			}
		}
	}
	r.keys(n, exampleMasqAgent, map[string]take{
		cidrs:               list(&f.NonMasqueradeCIDRs, exampleCIDRs, scalar),
		"cidrLimit":         scalar(&f.CIDRLimit),
		"masqLinkLocal":     scalar(&f.MasqLinkLocal),
		"masqLinkLocalIPv6": scalar(&f.MasqLinkLocalIPv6),
		"resyncInterval":    scalar(&f.ResyncInterval),
	})
}

// parseMasqAgent reads the text of ip-masq-agent's file; an empty one means all defaults.
func parseMasqAgent(text []byte) (a *MasqAgent, err error) {
	if json.Valid(text) {
		text = bytes.ReplaceAll(text, []byte("\t"), []byte(" ")) // JSON allows tabs between its tokens, where YAML does not
	}
	var f fileMasqAgent
	if err := decode(text, f.take); err != nil {
		return nil, err
	}
	a = &MasqAgent{MasqLinkLocal: f.MasqLinkLocal.or(false), MasqLinkLocalIPv6: f.MasqLinkLocalIPv6.or(false)}
	cidrs := f.NonMasqueradeCIDRs.or(saying(defaultNonMasq))
	if limit := f.CIDRLimit.or(defaultCIDRLimit); len(cidrs) > limit {
		return nil, f.NonMasqueradeCIDRs.wrong(fmt.Errorf("nonMasqueradeCIDRs: %d CIDRs are more than cidrLimit, which is %d", len(cidrs), limit))
	}
	if a.NonMasqueradeCIDRs, err = parseCIDRs("nonMasqueradeCIDRs", cidrs); err != nil {
		return nil, err
	}
	a.ResyncInterval, err = resyncBounds.parse("resyncInterval", f.ResyncInterval, defaultResync)
	return a, err
}
