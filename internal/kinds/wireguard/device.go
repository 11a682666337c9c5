// Package wireguard has the kinds of the encrypted tunnel to other nodes: the node's WireGuard device, and, for each other node,
// the device's peer. Packets for other nodes' pods go through the device, which encrypts them for the node whose peer has the
// address. Without a peer for it, the device drops a packet: nothing leaves in clear.
package wireguard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kernel/wireguard"
	"github.com/berth-net/berth/internal/stamp"
)

// DeviceKind is the name of the device's kind.
const DeviceKind = "wireguard"

// Overhead4 and Overhead6 are how many bytes of each packet WireGuard takes, if the nodes' addresses are IPv4 and IPv6: the IP
// header, UDP's, and a data message's header and authenticator (https://www.wireguard.com/protocol, 4 + 4 + 8 and 16).
const (
	Overhead4 = 20 + 8 + 16 + 16
	Overhead6 = 40 + 8 + 16 + 16
)

// ErrNone says that the node's kernel has no WireGuard.
var ErrNone = errors.New("this node's kernel has no WireGuard (Linux 5.6 and newer have it as the module wireguard): pods of other nodes are out of reach, because nothing may go there in clear")

// Device is the node's WireGuard device. The private key is in no spec: it stays in its file and in the device.
type Device struct {
	Instance  string       `json:"instance"`
	PublicKey string       `json:"publicKey"` // base64
	Port      uint16       `json:"port"`      // UDP, at which other nodes reach the device
	MTU       int          `json:"mtu"`       // bytes
	Addresses []netip.Addr `json:"addresses"` // the device's own, from which the node itself sends to other nodes' pods
}

// Kind returns DeviceKind.
func (d *Device) Kind() string { return DeviceKind }

func (d *Device) String() string {
	return fmt.Sprintf("WireGuard device %s key %s port %d mtu %d addresses %v", d.name(), d.PublicKey, d.Port, d.MTU, d.Addresses)
}

func (d *Device) name() string { return stamp.Tunnel(d.Instance) }

// word begins the alias of a device.
const word = "berth-wireguard"

// alias is what the device is for: it tells Find all of the spec, also if others have changed the device.
func (d *Device) alias(owner hold.ID) string {
	addrs := make([]string, len(d.Addresses))
	for i, a := range d.Addresses {
		addrs[i] = a.String()
	}
	return fmt.Sprintf("%s %s %s %s %d %d %s", word, d.Instance, owner, d.PublicKey, d.Port, d.MTU, strings.Join(addrs, ","))
}

// parse reads what alias wrote.
func parse(alias string) (d *Device, owner hold.ID, ok bool) {
	f := strings.Split(alias, " ")
	if len(f) != 7 || f[0] != word || stamp.CheckID(f[2]) != nil {
		return nil, "", false
	}
	port, err1 := strconv.ParseUint(f[4], 10, 16)
	mtu, err2 := strconv.Atoi(f[5])
	err := cmp.Or(err1, err2)
	d = &Device{Instance: f[1], PublicKey: f[3], Port: uint16(port), MTU: mtu}
	for text := range strings.SplitSeq(f[6], ",") {
		if text == "" {
			continue
		}
		a, failed := netip.ParseAddr(text)
		err = cmp.Or(err, failed)
		d.Addresses = append(d.Addresses, a)
	}
	return d, hold.ID(f[2]), err == nil
}

// Options are what the kinds need.
type Options struct {
	Conn     *rtnl.Conn // to the node's network namespace
	At       *ns.Netns  // that namespace; nil: this thread's
	Instance string
	// Secret returns the node's private key.
	Secret func() (wireguard.Secret, error)
	// Make makes a device; nil: the kernel's own. It is the seam for programs that play the kernel's part.
	Make func(name string, mtu int) error
}

// FromFile returns the private key in a file, which the first call ever makes, for Options.Secret.
func FromFile(path string) func() (wireguard.Secret, error) {
	return func() (wireguard.Secret, error) { return wireguard.LoadSecret(path) }
}

// Tunnel makes and deletes the device, and its peers.
type Tunnel struct {
	Options
	door  *wireguard.Door
	mu    sync.Mutex
	idle  bool             // there was no device, and acquire has made none since
	turns int              // how often acquire has ended
	known map[string]*Peer // by public key: the peers that holds had when they were last taken or verified
}

// New returns the tunnel of an instance.
func New(o Options) *Tunnel {
	if o.Make == nil {
		o.Make = func(name string, mtu int) error { return o.Conn.Do(rtnl.AddWireGuard(name, mtu)) }
	}
	return &Tunnel{Options: o, door: wireguard.Open(o.At), known: map[string]*Peer{}}
}

// DeviceKind returns the kind of the device. There is one device at most.
func (t *Tunnel) DeviceKind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(Device) },
		Acquire: t.acquire,
		Verify:  hold.VerifyEach(t.verify),
		Release: hold.Each(t.release),
		Find:    t.find,
		Waits:   true, // the routes of other nodes lead by the device
	}
}

// seen is a link with the alias of a device of the instance, or with the name and the key of it.
type seen struct {
	rtnl.Link
	spec  *Device
	owner hold.ID // empty: its alias is lost, or was never written
}

// devices lists the instance's devices, whatever their names are now. Usually there is one. On a node that has no use for WireGuard,
// a kernel without it would have to show all links to each sweep: so devices looks only once, until acquire may have made a device.
func (t *Tunnel) devices() (all []seen, err error) {
	t.mu.Lock()
	idle, turns := t.idle, t.turns
	t.mu.Unlock()
	if idle {
		return nil, nil
	}
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.idle = err == nil && len(all) == 0 && turns == t.turns
	}()
	return t.list()
}

// acquired has devices look again.
func (t *Tunnel) acquired() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idle, t.turns = false, t.turns+1
}

func (t *Tunnel) list() (all []seen, err error) {
	links, err := t.Conn.WireGuards(func(l rtnl.Link) (bool, error) {
		return strings.HasPrefix(l.Alias, word+" ") || l.Name == stamp.Tunnel(t.Instance), nil
	})
	if err != nil {
		return nil, fmt.Errorf("looking for the WireGuard device: %w", err)
	}
	for _, l := range links {
		spec, owner, ok := parse(l.Alias)
		if ok {
			if spec.Instance == t.Instance {
				all = append(all, seen{l, spec, owner})
			}
			continue
		}
		spec, err := t.unsigned(l)
		if err != nil {
			return nil, err
		}
		if spec != nil {
			all = append(all, seen{l, spec, ""})
		}
	}
	return all, nil
}

// unsigned returns the device that a link with the device's name and without its alias is; nil: it is somebody else's. A device
// without a key is one that an agent made right before it was killed.
func (t *Tunnel) unsigned(l rtnl.Link) (*Device, error) {
	has, err := t.door.Device(l.Name)
	if errors.Is(err, kernel.ErrNotFound) || errors.Is(err, kernel.ErrUnsupported) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	secret, err := t.Secret()
	if err != nil {
		return nil, err
	}
	if fresh := has.Port == 0 && len(has.Peers) == 0 && !l.Up; has.PublicKey != secret.Public() && !fresh {
		return nil, nil
	}
	addrs, err := t.Conn.HostAddresses(l.Index)
	return &Device{t.Instance, has.PublicKey, has.Port, l.MTU, addrs}, err
}

// device returns a hold's spec, and refuses a spec that is no device of this instance.
func (t *Tunnel) device(h hold.Hold) (*Device, error) {
	d, ok := h.Spec.(*Device)
	switch {
	case !ok:
		return nil, fmt.Errorf("a hold of kind %s is not a WireGuard device", h.Spec.Kind())
	case d.Instance != t.Instance:
		return nil, fmt.Errorf("%s does not belong to this instance, %s", d, t.Instance)
	}
	return d, nil
}

// acquire makes the device. If the instance has the device already, acquire puts it right, and its peers stay.
func (t *Tunnel) acquire(_ context.Context, h hold.Hold) error {
	d, err := t.device(h)
	if err != nil {
		return err
	}
	secret, err := t.Secret()
	if err != nil {
		return err
	}
	if secret.Public() != d.PublicKey || d.Port == 0 {
		return fmt.Errorf("%s cannot be: want a port, and the key %s, which belongs to this node's private key", d, secret.Public())
	}
	defer t.acquired()
	all, err := t.devices()
	if err != nil {
		return err
	}
	made := false
	for _, s := range all {
		switch {
		case s.owner != "" && s.owner != h.Owner:
			return fmt.Errorf("%w: owner %s has %s", hold.ErrForeign, s.owner, s.spec)
		case s.Name == d.name():
			made = true
		default:
			if err := t.remove(s.Index); err != nil {
				return err
			}
		}
	}
	if !made {
		err := t.Make(d.name(), d.MTU)
		switch {
		case errors.Is(err, kernel.ErrExists):
			return fmt.Errorf("%w: a link has the name: %w", hold.ErrForeign, err)
		case errors.Is(err, kernel.ErrUnsupported):
			return fmt.Errorf("%w: %w", ErrNone, err)
		case err != nil:
			return err
		}
	}
	return t.equip(d, h.Owner, secret)
}

// equip sets everything. The device goes up when it is complete.
func (t *Tunnel) equip(d *Device, owner hold.ID, secret wireguard.Secret) error {
	// The alias comes first: from then on the device says whose it is.
	if err := t.Conn.Do(rtnl.SetLink(d.name(), rtnl.Alias(d.alias(owner)), rtnl.MTU(d.MTU))); err != nil {
		return err
	}
	has, err := t.door.Device(d.name())
	if err != nil {
		return err
	}
	if has.PublicKey != d.PublicKey || has.Port != d.Port {
		if err := t.door.Set(d.name(), secret, d.Port); err != nil {
			return err
		}
	}
	if err := t.Conn.Do(rtnl.SetLink(d.name(), rtnl.NoAddrGen())); err != nil && !errors.Is(err, kernel.ErrUnsupported) {
		return err
	}
	if err := t.Conn.Do(rtnl.SetLink(d.name(), rtnl.Up())); err != nil {
		return err
	}
	var l rtnl.Link
	if err := t.Conn.Do(rtnl.GetLink(d.name(), &l)); err != nil {
		return err
	}
	return t.Conn.SetHostAddresses(l.Index, d.Addresses)
}

func (t *Tunnel) verify(_ context.Context, h hold.Hold) error {
	d, err := t.device(h)
	if err != nil {
		return err
	}
	all, err := t.devices()
	if err != nil {
		return err
	}
	gone := fmt.Errorf("%s is %w", d, hold.ErrGone)
	for _, s := range all {
		if s.owner != "" && s.owner != h.Owner {
			continue
		}
		if s.Name != d.name() {
			gone = fmt.Errorf("%s is %w: its name is %s", d, hold.ErrChanged, s.Name)
			continue
		}
		has, err := t.door.Device(s.Name)
		if errors.Is(err, kernel.ErrNotFound) {
			return fmt.Errorf("%s is %w: it is no WireGuard device", d, hold.ErrChanged)
		}
		if err != nil {
			return err
		}
		addrs, err := t.Conn.HostAddresses(s.Index)
		if err != nil {
			return err
		}
		is := Device{t.Instance, has.PublicKey, has.Port, s.MTU, addrs}
		want := *d
		want.Addresses = slices.SortedFunc(slices.Values(d.Addresses), netip.Addr.Compare)
		if s.Alias != d.alias(h.Owner) || !s.Up || is.String() != want.String() {
			return fmt.Errorf("%s is %w: it is %s, up %t, alias %q", d, hold.ErrChanged, &is, s.Up, s.Alias)
		}
		return nil
	}
	return gone
}

// release deletes the device. A device that has come to be for another hold of the owner stays.
func (t *Tunnel) release(_ context.Context, h hold.Hold) error {
	d, err := t.device(h)
	if err != nil {
		return err
	}
	all, err := t.devices()
	for _, s := range all {
		if (s.owner == h.Owner || s.owner == "") && s.spec.String() == d.String() {
			err = errors.Join(err, t.remove(s.Index))
		}
	}
	return err
}

func (t *Tunnel) remove(index int) error {
	err := t.Conn.Do(rtnl.DelLinkAt(index))
	if errors.Is(err, kernel.ErrNotFound) {
		return nil
	}
	return err
}

func (t *Tunnel) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	all, err := t.devices()
	holds := make([]hold.Hold, len(all))
	for i, s := range all {
		holds[i] = hold.Hold{Owner: s.owner, Spec: s.spec}
	}
	return holds, err
}
