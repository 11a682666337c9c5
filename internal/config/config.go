// Package config reads the agent's configuration: <root>/etc/berth/berthd.yaml, and the
// flags, which take precedence. It guesses nothing: an unknown key, a range that pods
// cannot use or a duration without a unit is an error that names it.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/root"
)

// Config is the configuration in force. All of it has been checked.
type Config struct {
	Pools         []ipam.PoolConfig // at least one, except with Flags.Remove; the first is the default
	Cooldown      time.Duration     // of addresses, if Pools is empty; each pool has its own
	MTU           int               // of attachments; 0: the least MTU of the node's default routes
	Masquerade    Masquerade
	BlockedCIDRs  []netip.Prefix // the node forwards nothing but DNS from pods to these, and no new connection from these to pods
	Connections   int            // that the node tracks for one pod at most; 0: no limit
	Concurrency   int            // verbs that run at once
	Metrics       string         // TCP address of the Prometheus metrics, "127.0.0.1:9477"; "": none
	Tracing       Tracing        // where spans go
	LogLevel      slog.Level     // least level that is logged
	SweepInterval time.Duration  // between two searches for what is missing or left over
	Forwarding    bool           // turn on the node's forwarding of the families that pools have
	History       History        // what is kept of attachments that are gone
	FullNotReady  bool           // STATUS fails (50) while the pool has no free address
	Kubernetes    *Kubernetes    // the cluster that the node belongs to; nil: none
}

// Kubernetes says which node of which cluster the agent is on. The cluster's API server tells the addresses of
// the node's pods, and where the pods of other nodes are.
type Kubernetes struct {
	Node       string    `json:"node"`       // name of the Node object; by default what NodeVariable says
	Kubeconfig string    `json:"kubeconfig"` // file; "": the pod's own service account
	Addresses  string    `json:"addresses"`  // where the pods' addresses come from: AddressesPodCIDRs or AddressesPools
	Routing    string    `json:"routing"`    // how packets get to other nodes' pods: one of the Routing constants
	VXLAN      VXLAN     `json:"vxlan"`
	WireGuard  WireGuard `json:"wireguard"`
	Health     Health    `json:"health"`
	// Networks says that pods may ask for more networks than one, by annotations (package nad).
	Networks bool `json:"networks"`
}

// Is reports whether k and o say the same.
func (k *Kubernetes) Is(o *Kubernetes) bool { return k == o || k != nil && o != nil && *k == *o }

// NodeVariable is the environment variable that names the Node object, unless the file does.
const NodeVariable = "NODE_NAME"

// Where the addresses of the node's pods come from.
const (
	AddressesPodCIDRs = "podCIDRs" // from the CIDRs that the cluster gives to the node (Node.spec.podCIDRs)
	AddressesPools    = "pools"    // from the cluster's pools (api/v1alpha1), of which the node gets blocks
)

// How packets get to other nodes' pods.
const (
	RoutingNative = "native" // by the node's address, which must be on a link of this node
	RoutingVXLAN  = "vxlan"  // through a tunnel
	RoutingAuto   = "auto"   // natively to nodes on a link of this node, and to others through the tunnel
	// RoutingWireGuard is through a tunnel that encrypts. It is a way of routing and no switch beside the others: the device takes
	// the place of the VXLAN device, and there is no way but by it, so that nothing can go in clear.
	RoutingWireGuard = "wireguard"
)

// WireGuard says where the node's WireGuard device can be reached.
type WireGuard struct {
	Port int `json:"port"` // UDP
}

// VXLAN says by what the nodes' tunnel (RFC 7348) is known. It must be the same on all nodes of the cluster.
type VXLAN struct {
	VNI  int `json:"vni"`  // 1 to 16,777,215
	Port int `json:"port"` // UDP
}

// Health says whether and how the nodes of a cluster probe each other. The port must be the same on all nodes of the cluster.
type Health struct {
	Enabled  bool          `json:"enabled"`
	Interval time.Duration `json:"interval"` // between two probes of one way, if the cluster is not large
	Port     int           `json:"port"`     // TCP, of the responders
}

// Masquerade says whether pods' traffic leaves the node under the node's own address.
// Traffic to a pool or to an excluded CIDR (Excluded) never does.
type Masquerade struct {
	Enabled         bool
	ExcludedCIDRs   []netip.Prefix
	Ports           Ports      // that pods' traffic leaves by
	IPMasqAgentFile string     // a file in ip-masq-agent's format, which excludes further CIDRs; "": none
	MasqAgent       *MasqAgent // what that file says; nil: there is to be none
	MasqAgentErr    error      // why that file is wrong, and MasqAgent is not what it says; nil: it is
}

// Tracing says where OpenTelemetry's spans go, and which are made.
type Tracing struct {
	Endpoint string  `json:"endpoint"` // URL to which spans are posted, with its path; "": none are made
	Sampling float64 `json:"sampling"` // part of the requests without a parent that are traced, 0 to 1
}

// History says how much is kept of attachments that are gone.
type History struct {
	Records int           // how many records are kept; 0: none
	Age     time.Duration // how long a record is kept, since its attachment ended
}

// Ports is a range of ports, both ends included.
type Ports struct{ First, Last uint16 }

// Len returns how many ports there are.
func (p Ports) Len() int { return int(p.Last) - int(p.First) + 1 }

// Flags are what berthd's command line says about the configuration.
type Flags struct {
	File    string   // --config; "": root.Dir.Config, if there is one
	Pools   []string // --pool, each in ParsePool's form, in their order
	Metrics string   // --metrics; "": what the file says
	Remove  bool     // --remove: an agent that only gives back needs no pool
	Again   bool     // the agent has read its configuration before: a pipe in the file's place could keep it waiting for ever
}

// Reading is a configuration that was read again, or the reason why it could not be read.
type Reading struct {
	Config *Config
	Err    error
}

// maxFile is how many bytes a configuration file may have.
const maxFile = 1 << 20

// Load reads the configuration of the agent whose files are under dir. Flags take
// precedence over the file: their pools come first, and replace the file's pools of the
// same names.
func Load(dir root.Dir, flags Flags) (*Config, error) {
	path, named := flags.File, flags.File != ""
	if !named {
		path = dir.Config()
	}
	open := os.Open // a file that --config names may be a pipe, once
	if !named || flags.Again {
		open = root.Open
	}
	text, err := read(path, open)
	absent := !named && errors.Is(err, fs.ErrNotExist)
	if err != nil && !absent {
		return nil, fmt.Errorf("reading config: %w", err)
	}
	c, cooldown, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("config %s: %w", path, err)
	}
	c.Cooldown = cooldown
	c.Masquerade.takeMasqAgent()
	if err := c.override(flags, cooldown); err != nil {
		return nil, err
	}
	switch {
	case len(c.Pools) > 0, flags.Remove, c.Kubernetes != nil:
	case absent:
		return nil, fmt.Errorf("no pool: %s does not exist: name a pool there, or with --pool NAME=CIDR", path)
	default:
		return nil, fmt.Errorf("no pool: name a pool under pools in %s, or with --pool NAME=CIDR", path)
	}
	// File and flags are each valid by themselves by now, but may not fit together.
	if err := cmp.Or(ipam.Validate(c.Pools), c.checkMTU()); err != nil {
		return nil, fmt.Errorf("config %s and flags: %w", path, err)
	}
	return c, nil
}

func read(path string, open func(string) (*os.File, error)) ([]byte, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s: larger than %d bytes", path, maxFile)
	}
	return text, err
}

// override applies the flags to the configuration. The flags' pools get the given cooldown.
func (c *Config) override(flags Flags, cooldown time.Duration) error {
	var pools []ipam.PoolConfig
	for _, s := range flags.Pools {
		p, err := ParsePool(s)
		if err != nil {
			return fmt.Errorf("--pool %.200s: %w", s, err)
		}
		p.Cooldown = cooldown
		pools = append(pools, p)
	}
	c.Pools = append(pools, slices.DeleteFunc(c.Pools, func(p ipam.PoolConfig) bool {
		return slices.ContainsFunc(pools, func(f ipam.PoolConfig) bool { return f.Name == p.Name })
	})...)
	if c.Kubernetes != nil && slices.ContainsFunc(c.Pools, func(p ipam.PoolConfig) bool { return p.Name == NodePool }) {
		return fmt.Errorf("pool %s: with kubernetes, that is the pool of the addresses that the cluster gives to the node", NodePool)
	}
	if flags.Metrics != "" {
		var err error
		if c.Metrics, err = parseMetrics(flags.Metrics); err != nil {
			return fmt.Errorf("--metrics %w", err)
		}
	}
	return nil
}
