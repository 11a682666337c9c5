package config

import (
	"fmt"
	"os"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/berth-net/berth/internal/stamp"
)

// The VXLAN that nodes have unless the file says otherwise: IANA's port, and Berth's number of routes as the VNI.
const defaultVNI, defaultPort = stamp.Protocol, 4789

// defaultWireGuard is the port that WireGuard's own documentation uses.
const defaultWireGuard = 51820

const maxVNI, maxPort = 1<<24 - 1, 1<<16 - 1

// How nodes probe each other unless the file says otherwise. The port is the one behind that of the metrics.
const defaultHealthInterval, defaultHealthPort = 30 * time.Second, 9478

type fileKubernetes struct {
	Node       said[string]
	Kubeconfig said[string]
	Addresses  said[string]
	Routing    said[string]
	VXLAN      fileVXLAN
	WireGuard  fileWireGuard
	Health     fileHealth
	Networks   said[bool]
}

func takeKubernetes(s *said[fileKubernetes]) take {
	return func(r *reader, n *yaml.Node) {
		k := new(fileKubernetes)
		r.keys(n, "{node: node-1}", map[string]take{
			"node":       scalar(&k.Node),
			"kubeconfig": scalar(&k.Kubeconfig),
			"addresses":  scalar(&k.Addresses),
			"routing":    scalar(&k.Routing),
			"vxlan":      k.VXLAN.take,
			"wireguard":  k.WireGuard.take,
			"health":     k.Health.take,
			"networks":   scalar(&k.Networks),
		})
		*s = said[fileKubernetes]{k, n.Line}
	}
}

func (f *fileKubernetes) check() (*Kubernetes, error) {
	k := &Kubernetes{
		Node: f.Node.or(os.Getenv(NodeVariable)), Kubeconfig: f.Kubeconfig.or(""),
		Addresses: f.Addresses.or(AddressesPodCIDRs), Routing: f.Routing.or(RoutingAuto),
		VXLAN:     VXLAN{VNI: f.VXLAN.VNI.or(defaultVNI), Port: f.VXLAN.Port.or(defaultPort)},
		WireGuard: WireGuard{Port: f.WireGuard.Port.or(defaultWireGuard)},
		Networks:  f.Networks.or(false),
	}
	if err := checkNode(k.Node); err != nil {
		return nil, f.Node.wrong(fmt.Errorf("kubernetes.node: %w", err))
	}
	switch k.Addresses {
	case AddressesPodCIDRs, AddressesPools:
	default:
		return nil, f.Addresses.wrong(fmt.Errorf("kubernetes.addresses: %.40q is neither podCIDRs nor pools", k.Addresses))
	}
	switch k.Routing {
	case RoutingAuto, RoutingNative, RoutingVXLAN, RoutingWireGuard:
	default:
		return nil, f.Routing.wrong(fmt.Errorf("kubernetes.routing: %.40q is none of auto, native, vxlan and wireguard", k.Routing))
	}
	if v := k.VXLAN.VNI; v < 1 || v > maxVNI {
		return nil, f.VXLAN.VNI.wrong(fmt.Errorf("kubernetes.vxlan.vni: %d is not within 1 to %d", v, maxVNI))
	}
	if p := k.VXLAN.Port; p < 1 || p > maxPort {
		return nil, f.VXLAN.Port.wrong(fmt.Errorf("kubernetes.vxlan.port: %d is not within 1 to %d", p, maxPort))
	}
	if p := k.WireGuard.Port; p < 1 || p > maxPort {
		return nil, f.WireGuard.Port.wrong(fmt.Errorf("kubernetes.wireguard.port: %d is not within 1 to %d", p, maxPort))
	}
	var err error
	k.Health, err = f.Health.check()
	return k, err
}

type fileVXLAN struct {
	VNI  said[int]
	Port said[int]
}

func (f *fileVXLAN) take(r *reader, n *yaml.Node) {
	r.keys(n, "{vni: 98}", map[string]take{"vni": scalar(&f.VNI), "port": scalar(&f.Port)})
}

type fileWireGuard struct{ Port said[int] }

func (f *fileWireGuard) take(r *reader, n *yaml.Node) {
	r.keys(n, "{port: 51820}", map[string]take{"port": scalar(&f.Port)})
}

type fileHealth struct {
	Enabled  said[bool]
	Interval said[string]
	Port     said[int]
}

func (f *fileHealth) take(r *reader, n *yaml.Node) {
	r.keys(n, "{enabled: true}", map[string]take{"enabled": scalar(&f.Enabled), "interval": scalar(&f.Interval), "port": scalar(&f.Port)})
}

// check returns what the file says, and the default where it says nothing.
func (f *fileHealth) check() (h Health, err error) {
	h = Health{Enabled: f.Enabled.or(true), Port: f.Port.or(defaultHealthPort)}
	if p := h.Port; p < 1 || p > maxPort {
		return h, f.Port.wrong(fmt.Errorf("kubernetes.health.port: %d is not within 1 to %d", p, maxPort))
	}
	h.Interval, err = healthBounds.parse("kubernetes.health.interval", f.Interval, defaultHealthInterval)
	return h, err
}
