package wireguard

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/wireguard"
	"github.com/berth-net/berth/internal/stamp"
)

// PeerKind is the name of the kind of what the device has for another node.
const PeerKind = "wireguardpeer"

// batch is how many peers one Release takes.
const batch = 32

// alive is how long a handshake vouches for where a peer is: no session is older (REJECT_AFTER_TIME of the protocol).
const alive = 180 * time.Second

// Peer is another node, as the device knows it.
type Peer struct {
	Instance   string         `json:"instance"`
	PublicKey  string         `json:"publicKey"`  // base64
	Endpoint   netip.AddrPort `json:"endpoint"`   // where the other node's device is
	AllowedIPs []netip.Prefix `json:"allowedIPs"` // the CIDRs of the other node's pods, in order
}

// Kind returns PeerKind.
func (p *Peer) Kind() string { return PeerKind }

func (p *Peer) String() string {
	return fmt.Sprintf("peer %s endpoint %s allowed IPs %v of WireGuard device %s", p.PublicKey, p.Endpoint, p.AllowedIPs, stamp.Tunnel(p.Instance))
}

// Gateway returns the gateway of routes to a CIDR of a node's pods by the device. WireGuard goes by a packet's own destination, so
// any address does that no other link has: the CIDR's first one, as `ip route` then shows, and for IPv6 a link-local address that
// follows from the CIDR, because the kernel refuses what another route leads to.
func Gateway(c netip.Prefix) netip.Addr {
	if c.Addr().Is4() {
		return c.Addr()
	}
	sum := sha256.Sum256([]byte("berth wireguard " + c.String()))
	a := netip.MustParseAddr("fe80::").As16()
	copy(a[8:], sum[:8])
	return netip.AddrFrom16(a)
}

// PeerKind returns the kind of the device's peers. All of them go with the device.
func (t *Tunnel) PeerKind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(Peer) },
		Acquire: t.acquirePeer,
		Verify:  t.verifyPeers,
		Release: t.releasePeers,
		Batch:   batch,
		Find:    t.findPeers,
	}
}

// peer returns a hold's spec, and refuses a spec that is no peer of this instance.
func (t *Tunnel) peer(h hold.Hold) (*Peer, error) {
	p, ok := h.Spec.(*Peer)
	switch {
	case !ok:
		return nil, fmt.Errorf("a hold of kind %s is not a WireGuard peer", h.Spec.Kind())
	case p.Instance != t.Instance:
		return nil, fmt.Errorf("%s does not belong to this instance, %s", p, t.Instance)
	}
	return p, wireguard.CheckKey(p.PublicKey)
}

// note notes the peer of a hold that the device is to have.
func (t *Tunnel) note(p *Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known[p.PublicKey] = p
}

func (t *Tunnel) noted(key string) *Peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known[key]
}

func (t *Tunnel) acquirePeer(_ context.Context, h hold.Hold) error {
	p, err := t.peer(h)
	if err != nil {
		return err
	}
	if !p.Endpoint.IsValid() || p.Endpoint.Port() == 0 || !slices.IsSortedFunc(p.AllowedIPs, netip.Prefix.Compare) {
		return fmt.Errorf("%s cannot be: want an endpoint, and CIDRs in order", p)
	}
	name, err := t.at()
	if err != nil {
		return err
	}
	if name == "" {
		return fmt.Errorf("%s: there is no such device: %w", p, kernel.ErrNotFound)
	}
	t.note(p)
	return t.door.SetPeer(name, wireguard.Peer{PublicKey: p.PublicKey, Endpoint: p.Endpoint, AllowedIPs: p.AllowedIPs})
}

// at returns the name that the instance's device has now; "": there is none.
func (t *Tunnel) at() (name string, err error) {
	devices, err := t.devices()
	if err != nil || len(devices) == 0 {
		return "", err
	}
	return devices[0].Name, nil
}

// peers returns the peers that the instance's device has, and the device's name; "": there is none.
func (t *Tunnel) peers() (name string, all map[string]wireguard.Peer, err error) {
	if name, err = t.at(); err != nil || name == "" {
		return name, nil, err
	}
	dev, err := t.door.Device(name)
	if errors.Is(err, kernel.ErrNotFound) {
		return "", nil, nil
	}
	all = map[string]wireguard.Peer{}
	for _, p := range dev.Peers {
		all[p.PublicKey] = p
	}
	return name, all, err
}

func (t *Tunnel) verifyPeers(_ context.Context, _ *hold.Look, hs []hold.Hold) []error {
	errs := make([]error, len(hs))
	_, has, seeing := t.peers()
	for i, h := range hs {
		p, err := t.peer(h)
		switch {
		case err != nil:
			errs[i] = err
		case seeing != nil:
			errs[i] = seeing
		default:
			t.note(p)
			errs[i] = p.differs(has)
		}
	}
	return errs
}

// differs compares a peer with what the device has. A peer whose packets come from another address is there from then on, as
// WireGuard has it; that counts as right for as long as the handshake vouches for it.
func (p *Peer) differs(has map[string]wireguard.Peer) error {
	is, there := has[p.PublicKey]
	switch {
	case !there:
		return fmt.Errorf("%s is %w", p, hold.ErrGone)
	case !slices.Equal(is.AllowedIPs, p.AllowedIPs):
		return fmt.Errorf("%s is %w: its allowed IPs are %v", p, hold.ErrChanged, is.AllowedIPs)
	case is.Endpoint != p.Endpoint && time.Since(is.Handshake) > alive:
		return fmt.Errorf("%s is %w: its endpoint is %s", p, hold.ErrChanged, is.Endpoint)
	}
	return nil
}

// releasePeers removes peers. A peer whose key another hold has come to have, such as with another endpoint, stays. It reads the
// device's peers only for holds that nobody has taken or verified since the agent started.
func (t *Tunnel) releasePeers(_ context.Context, hs []hold.Hold) []error {
	errs := make([]error, len(hs))
	name, seeing := t.at()
	for i, h := range hs {
		p, err := t.peer(h)
		if err = errors.Join(err, seeing); err != nil {
			errs[i] = err
			continue
		}
		if errs[i] = t.removePeer(name, p); errs[i] == nil {
			t.forget(p)
		}
	}
	return errs
}

// removePeer removes a hold's peer from the device with a name; "": there is none.
func (t *Tunnel) removePeer(name string, p *Peer) error {
	if name == "" {
		return nil
	}
	noted := t.noted(p.PublicKey)
	if noted == nil {
		_, has, err := t.peers()
		is, there := has[p.PublicKey]
		if err != nil || !there {
			return err
		}
		noted = t.shown(is)
	}
	if noted.String() != p.String() {
		return nil
	}
	err := t.door.RemovePeer(name, p.PublicKey)
	if errors.Is(err, kernel.ErrNotFound) { // the device has gone meanwhile
		return nil
	}
	return err
}

func (t *Tunnel) forget(p *Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if was := t.known[p.PublicKey]; was != nil && was.String() == p.String() {
		delete(t.known, p.PublicKey)
	}
}

// shown returns a peer of the device as a spec. Where the peer of a hold is by now does not make it another peer's.
func (t *Tunnel) shown(is wireguard.Peer) *Peer {
	p := &Peer{Instance: t.Instance, PublicKey: is.PublicKey, Endpoint: is.Endpoint, AllowedIPs: is.AllowedIPs}
	if noted := t.noted(is.PublicKey); noted != nil {
		p.Endpoint, p.AllowedIPs = noted.Endpoint, noted.AllowedIPs
	}
	return p
}

// findPeers returns the peers of the instance's device. A peer cannot say who owns it.
func (t *Tunnel) findPeers(context.Context, *hold.Look) ([]hold.Hold, error) {
	_, has, err := t.peers()
	var holds []hold.Hold
	for _, p := range has {
		holds = append(holds, hold.Hold{Spec: t.shown(p)})
	}
	slices.SortFunc(holds, func(a, b hold.Hold) int { return strings.Compare(a.Spec.String(), b.Spec.String()) })
	return holds, err
}
