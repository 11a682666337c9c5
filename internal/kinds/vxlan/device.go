// Package vxlan has the kinds of the tunnel to other nodes: the node's VXLAN device, and, for each other node, where the
// device sends what goes to that node. Packets for pods of nodes to which there is a router between, who knows
// nothing of pods, go through the tunnel.
//
// A device's MAC follows from its node's address (MACOf), so that no node has to tell others its MAC. The device learns
// nothing, floods nothing, and asks nobody for a MAC: it sends to the nodes of the holds alone.
package vxlan

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// DeviceKind is the name of the device's kind.
const DeviceKind = "vxlan"

// Overhead4 and Overhead6 are how many bytes of each packet VXLAN takes, if the nodes' addresses are IPv4 and IPv6: the IP
// header, UDP's, VXLAN's and the inner Ethernet header (RFC 7348, section 5).
const (
	Overhead4 = 20 + 8 + 8 + 14
	Overhead6 = 40 + 8 + 8 + 14
)

// Device is the node's VXLAN device.
type Device struct {
	Instance  string       `json:"instance"`
	VNI       uint32       `json:"vni"`       // 24 bits
	Port      uint16       `json:"port"`      // UDP
	Local     netip.Addr   `json:"local"`     // the node's address, which other nodes send to
	MTU       int          `json:"mtu"`       // bytes
	Addresses []netip.Addr `json:"addresses"` // the device's own, from which the node itself sends to other nodes' pods
}

// Kind returns DeviceKind.
func (d *Device) Kind() string { return DeviceKind }

func (d *Device) String() string {
	return fmt.Sprintf("VXLAN device %s id %d port %d local %s mtu %d addresses %v", d.name(), d.VNI, d.Port, d.Local, d.MTU, d.Addresses)
}

func (d *Device) name() string { return stamp.Tunnel(d.Instance) }

// MACOf returns the MAC that a node's device has, given the node's address: unicast, locally administered.
func MACOf(node netip.Addr) string {
	sum := sha256.Sum256([]byte("berth vxlan " + node.String()))
	sum[0] = sum[0]&^1 | 2
	return net.HardwareAddr(sum[:6]).String()
}

// word begins the alias of a device.
const word = "berth-vxlan"

// alias is what the device is for: it tells Find all of the spec, also if others have changed the device.
func (d *Device) alias(owner hold.ID) string {
	addrs := make([]string, len(d.Addresses))
	for i, a := range d.Addresses {
		addrs[i] = a.String()
	}
	return fmt.Sprintf("%s %s %s %d %d %s %d %s", word, d.Instance, owner, d.VNI, d.Port, d.Local, d.MTU, strings.Join(addrs, ","))
}

// parse reads what alias wrote.
func parse(alias string) (d *Device, owner hold.ID, ok bool) {
	f := strings.Split(alias, " ")
	if len(f) != 8 || f[0] != word || stamp.CheckID(f[2]) != nil {
		return nil, "", false
	}
	vni, err1 := strconv.ParseUint(f[3], 10, 24)
	port, err2 := strconv.ParseUint(f[4], 10, 16)
	local, err3 := netip.ParseAddr(f[5])
	mtu, err4 := strconv.Atoi(f[6])
	err := cmp.Or(err1, err2, err3, err4)
	d = &Device{Instance: f[1], VNI: uint32(vni), Port: uint16(port), Local: local, MTU: mtu}
	for text := range strings.SplitSeq(f[7], ",") {
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
	Instance string
}

// Tunnel makes and deletes the device, and what it has for each other node.
type Tunnel struct{ Options }

// New returns the tunnel of an instance.
func New(o Options) *Tunnel { return &Tunnel{o} }

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

// seen is a device of the instance.
type seen struct {
	rtnl.VXLAN
	spec  *Device
	owner hold.ID // empty: its alias is lost, or was never written
}

// devices lists the instance's devices, whatever their names are now. Usually there is one.
func (t *Tunnel) devices() (all []seen, err error) {
	links, err := t.Conn.VXLANs()
	if err != nil {
		return nil, fmt.Errorf("looking for VXLAN devices: %w", err)
	}
	for _, l := range links {
		spec, owner, ok := parse(l.Alias)
		switch {
		case ok && spec.Instance == t.Instance:
			all = append(all, seen{l, spec, owner})
		case !ok && l.Name == stamp.Tunnel(t.Instance) && l.MAC == MACOf(l.Local):
			addrs, err := t.Conn.HostAddresses(l.Index)
			if err != nil {
				return nil, err
			}
			all = append(all, seen{l, &Device{t.Instance, l.VNI, l.Port, l.Local, l.MTU, addrs}, ""})
		}
	}
	return all, nil
}

// device returns a hold's spec, and refuses a spec that is no device of this instance.
func (t *Tunnel) device(h hold.Hold) (*Device, error) {
	d, ok := h.Spec.(*Device)
	switch {
	case !ok:
		return nil, fmt.Errorf("a hold of kind %s is not a VXLAN device", h.Spec.Kind())
	case d.Instance != t.Instance:
		return nil, fmt.Errorf("%s does not belong to this instance, %s", d, t.Instance)
	case !d.Local.IsValid() || d.VNI >= 1<<24 || d.Port == 0:
		return nil, fmt.Errorf("%s cannot be: want a VNI below %d, a port and an address", d, 1<<24)
	}
	return d, nil
}

// acquire makes the device. If the instance has a device that is not as it should be, acquire puts right what can be put
// right while packets pass, and otherwise makes the device anew.
func (t *Tunnel) acquire(_ context.Context, h hold.Hold) error {
	d, err := t.device(h)
	if err != nil {
		return err
	}
	all, err := t.devices()
	if err != nil {
		return err
	}
	made := false
	for _, s := range all {
		switch {
		case s.owner != "" && s.owner != h.Owner:
			return fmt.Errorf("%w: owner %s has %s", hold.ErrForeign, s.owner, s.spec)
		case s.Name == d.name() && s.VNI == d.VNI && s.Port == d.Port && s.Local == d.Local:
			made = true
		default:
			if err := t.remove(s.Index); err != nil {
				return err
			}
		}
	}
	if !made {
		err := t.Conn.Do(rtnl.AddVXLAN(rtnl.VXLAN{Name: d.name(), MAC: MACOf(d.Local), MTU: d.MTU, VNI: d.VNI, Port: d.Port, Local: d.Local}))
		if errors.Is(err, kernel.ErrExists) {
			return fmt.Errorf("%w: a link has the name, or a VXLAN device the id and port: %w", hold.ErrForeign, err)
		}
		if err != nil {
			return err
		}
	}
	return t.equip(d, h.Owner)
}

// equip sets everything but what AddVXLAN alone can set.
func (t *Tunnel) equip(d *Device, owner hold.ID) error {
	mac, _ := net.ParseMAC(MACOf(d.Local))
	// The alias comes first: from then on the device says whose it is.
	if err := t.Conn.Do(rtnl.SetLink(d.name(), rtnl.Alias(d.alias(owner)), rtnl.MTU(d.MTU))); err != nil {
		return err
	}
	var l rtnl.Link
	if err := t.Conn.Do(rtnl.GetLink(d.name(), &l)); err != nil {
		return err
	}
	if l.MAC != mac.String() { // setting a MAC deletes the neighbours
		if err := t.Conn.Do(rtnl.SetLink(d.name(), rtnl.MAC(mac))); err != nil {
			return err
		}
	}
	if err := t.Conn.Do(rtnl.SetLink(d.name(), rtnl.NoAddrGen())); err != nil && !errors.Is(err, kernel.ErrUnsupported) {
		return err
	}
	if err := t.Conn.Do(rtnl.SetLink(d.name(), rtnl.Up())); err != nil {
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
		addrs, err := t.Conn.HostAddresses(s.Index)
		if err != nil {
			return err
		}
		is := Device{t.Instance, s.VNI, s.Port, s.Local, s.MTU, addrs}
		want := *d
		want.Addresses = slices.SortedFunc(slices.Values(d.Addresses), netip.Addr.Compare)
		switch {
		case s.Name != d.name():
			gone = fmt.Errorf("%s is %w: its name is %s", d, hold.ErrChanged, s.Name)
		case s.Alias != d.alias(h.Owner), !s.Up, s.MAC != MACOf(d.Local), is.String() != want.String():
			return fmt.Errorf("%s is %w: it is %s, up %t, MAC %s, alias %q", d, hold.ErrChanged, &is, s.Up, s.MAC, s.Alias)
		default:
			return nil
		}
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
