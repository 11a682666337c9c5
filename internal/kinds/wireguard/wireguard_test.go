package wireguard_test

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	door "github.com/berth-net/berth/internal/kernel/wireguard"
	"github.com/berth-net/berth/internal/kernel/wireguard/wgtest"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/kinds/wireguard"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// side is one node: its tunnel's kinds, and its keys.
type side struct {
	*wireguard.Tunnel
	at       *ns.Netns
	instance string
	secret   door.Secret
	device   hold.Hold
}

var sides atomic.Int32

// newSide makes a node whose devices wireguard-go plays, or, if real is set, the kernel has.
func newSide(t testing.TB, at *ns.Netns, real bool) *side {
	t.Helper()
	c, err := rtnl.Open(at)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	s := &side{at: at, instance: fmt.Sprintf("wg%c%cabcdef", 'a'+sides.Add(1)/26, 'a'+sides.Load()%26)}
	s.secret, err = door.LoadSecret(filepath.Join(t.TempDir(), "key"))
	must(t, err)
	o := wireguard.Options{Conn: c, At: at, Instance: s.instance, Secret: func() (door.Secret, error) { return s.secret, nil }}
	if !real {
		o.Make = wgtest.New(t, at).Make
	}
	s.Tunnel = wireguard.New(o)
	return s
}

func (s *side) name() string { return stamp.Tunnel(s.instance) }

func (s *side) spec() *wireguard.Device {
	return &wireguard.Device{
		Instance: s.instance, PublicKey: s.secret.Public(), Port: 51820, MTU: 1400,
		Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.0"), netip.MustParseAddr("fd00:244:1::")},
	}
}

// take makes the side's device.
func (s *side) take(t testing.TB, d *wireguard.Device) {
	t.Helper()
	s.device = hold.Hold{Owner: hold.NewID(), Spec: d}
	must(t, s.DeviceKind().Acquire(t.Context(), s.device))
}

var example = &wireguard.Device{
	Instance: "abcdefgh", PublicKey: "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=", Port: 51820, MTU: 1440,
	Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.0")},
}

func TestDevice(t *testing.T) {
	at := nettest.Node(t)
	s := newSide(t, at, false)
	kindtest.Run(t, kindtest.Kind{
		Kind:     s.DeviceKind(),
		Spec:     func(testing.TB, hold.ID) hold.Spec { return s.spec() },
		Alone:    true,
		Example:  example,
		Snapshot: func() string { return nettest.Snapshot(t, at).String() },
		Foreign: func(t testing.TB, _ hold.Hold) func() error {
			nettest.Eventually(t, "the former device's program to end", func() bool {
				_, err := door.Open(at).Device(s.name())
				return errors.Is(err, kernel.ErrNotFound)
			})
			nettest.Run(t, at, "ip link add "+s.name()+" type bridge")
			t.Cleanup(func() { nettest.Run(t, at, "ip link del "+s.name()) })
			return func() error {
				if !strings.Contains(nettest.Snapshot(t, at).String(), s.name()) {
					return errors.New("it is gone")
				}
				return nil
			}
		},
		Disguise: func(t testing.TB, _ hold.Hold) {
			nettest.Run(t, at, "ip link set "+s.name()+" down")
			nettest.Run(t, at, "ip link set "+s.name()+" name other")
		},
		Lose: func(t testing.TB, _ hold.Hold) { nettest.Run(t, at, "ip link del "+s.name()) },
	})
}

var public atomic.Int32

// key returns a public key that no other call has returned.
func key() string {
	return door.Secret{1, byte(public.Add(1)), byte(public.Load() >> 8)}.Public() // X25519 ignores bits of the first byte
}

func peerOf(s *side, endpoint string, cidrs ...string) *wireguard.Peer {
	p := &wireguard.Peer{Instance: s.instance, PublicKey: key(), Endpoint: netip.MustParseAddrPort(endpoint)}
	for _, c := range cidrs {
		p.AllowedIPs = append(p.AllowedIPs, netip.MustParsePrefix(c))
	}
	return p
}

func TestPeer(t *testing.T) {
	at := nettest.Node(t)
	s := newSide(t, at, false)
	s.take(t, s.spec())
	var n atomic.Int32
	k := s.PeerKind()
	k.Find = nil // a peer cannot say who owns it: see TestFind
	kindtest.Run(t, kindtest.Kind{
		Kind: k,
		Spec: func(testing.TB, hold.ID) hold.Spec {
			i := n.Add(1)
			return peerOf(s, "192.0.2.11:51820", fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:244:%d::/64", i))
		},
		Example:  &wireguard.Peer{Instance: "abcdefgh", PublicKey: example.PublicKey, Endpoint: netip.MustParseAddrPort("192.0.2.11:51820"), AllowedIPs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}},
		Snapshot: func() string { return fmt.Sprint(s.has(t)) },
		Disguise: func(t testing.TB, h hold.Hold) {
			p := h.Spec.(*wireguard.Peer)
			must(t, door.Open(at).SetPeer(s.name(), door.Peer{PublicKey: p.PublicKey, Endpoint: p.Endpoint}))
		},
	})
}

// has returns what the side's device has.
func (s *side) has(t testing.TB) door.Device {
	t.Helper()
	d, err := door.Open(s.at).Device(s.name())
	must(t, err)
	return d
}

// The device and its peers are put right after whatever others do to them.
func TestMended(t *testing.T) {
	at := nettest.Node(t)
	s := newSide(t, at, false)
	s.take(t, s.spec())
	peers := s.PeerKind()
	p := hold.Hold{Owner: hold.NewID(), Spec: peerOf(s, "192.0.2.11:51820", "10.244.2.0/24")}
	must(t, peers.Acquire(t.Context(), p))
	d := door.Open(at)
	run := func(line string) func() { return func() { nettest.Run(t, at, line+" "+s.name()) } }
	for what, harm := range map[string]struct {
		do           func()
		device, peer error
	}{
		"set down":      {func() { nettest.Run(t, at, "ip link set "+s.name()+" down") }, hold.ErrChanged, nil},
		"another MTU":   {run("ip link set mtu 1300 dev"), hold.ErrChanged, nil},
		"alias":         {func() { nettest.Run(t, at, "ip link set "+s.name()+" alias nobody's") }, hold.ErrChanged, nil},
		"address taken": {run("ip addr del 10.244.1.0/32 dev"), hold.ErrChanged, nil},
		"address given": {run("ip addr add 10.1.2.3/32 dev"), hold.ErrChanged, nil},
		"deleted":       {run("ip link del"), hold.ErrGone, hold.ErrGone},
		"another key":   {func() { must(t, d.Set(s.name(), door.Secret{9}, 51820)) }, hold.ErrChanged, nil},
		"another port":  {func() { must(t, d.Set(s.name(), s.secret, 51821)) }, hold.ErrChanged, nil},
		"peer removed":  {func() { must(t, d.RemovePeer(s.name(), p.Spec.(*wireguard.Peer).PublicKey)) }, nil, hold.ErrGone},
		"allowed IPs lost": {func() {
			must(t, d.SetPeer(s.name(), door.Peer{PublicKey: key(), Endpoint: netip.MustParseAddrPort("192.0.2.66:1"), AllowedIPs: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}}))
		}, nil, hold.ErrChanged},
		"another endpoint": {func() {
			w := *p.Spec.(*wireguard.Peer)
			must(t, d.SetPeer(s.name(), door.Peer{PublicKey: w.PublicKey, Endpoint: netip.MustParseAddrPort("192.0.2.66:1"), AllowedIPs: w.AllowedIPs}))
		}, nil, hold.ErrChanged},
	} {
		harm.do()
		if got := s.DeviceKind().Verify(t.Context(), nil, []hold.Hold{s.device})[0]; !errors.Is(got, harm.device) {
			t.Errorf("%s: the device: %v, not %v", what, got, harm.device)
		}
		if got := peers.Verify(t.Context(), nil, []hold.Hold{p})[0]; harm.peer != nil && !errors.Is(got, harm.peer) {
			t.Errorf("%s: the peer: %v, not %v", what, got, harm.peer)
		}
		must(t, s.DeviceKind().Acquire(t.Context(), s.device))
		must(t, peers.Acquire(t.Context(), p))
		must(t, s.DeviceKind().Verify(t.Context(), nil, []hold.Hold{s.device})[0])
		must(t, peers.Verify(t.Context(), nil, []hold.Hold{p})[0])
	}
}

// Find finds the peers of this instance's device, also those that others have put there; what has become another hold's stays.
func TestFind(t *testing.T) {
	at := nettest.Node(t)
	s := newSide(t, at, false)
	k := s.PeerKind()
	was := peerOf(s, "192.0.2.11:51820", "10.244.2.0/24")
	p := hold.Hold{Owner: hold.NewID(), Spec: was}
	if err := k.Acquire(t.Context(), p); err == nil {
		t.Error("taken without a device")
	}
	must(t, k.Release(t.Context(), []hold.Hold{p})[0])
	s.take(t, s.spec())
	must(t, k.Acquire(t.Context(), p))
	stranger := key()
	must(t, door.Open(at).SetPeer(s.name(), door.Peer{PublicKey: stranger}))
	found, err := k.Find(t.Context(), nil)
	must(t, err)
	if len(found) != 2 {
		t.Fatalf("found are %v", found)
	}
	for _, h := range found {
		if h.Spec.(*wireguard.Peer).PublicKey == stranger {
			must(t, k.Release(t.Context(), []hold.Hold{h})[0])
		} else if h.Spec.String() != was.String() {
			t.Errorf("found is %s, and not %s", h.Spec, was)
		}
	}
	moved := *was
	moved.Endpoint = netip.MustParseAddrPort("192.0.2.12:51820")
	is := hold.Hold{Owner: p.Owner, Spec: &moved}
	must(t, k.Acquire(t.Context(), is))
	must(t, k.Release(t.Context(), []hold.Hold{p})[0])
	must(t, k.Verify(t.Context(), nil, []hold.Hold{is})[0])
	must(t, k.Release(t.Context(), []hold.Hold{is})[0])
	if left := s.has(t).Peers; len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A kernel without WireGuard says so, nothing is left, and what is asked of it besides is answered. Where the kernel has it, the
// kind is tested with it.
func TestKernel(t *testing.T) {
	at := nettest.Node(t)
	s := newSide(t, at, true)
	h := hold.Hold{Owner: hold.NewID(), Spec: s.spec()}
	k := s.DeviceKind()
	err := k.Acquire(t.Context(), h)
	if err == nil {
		must(t, k.Verify(t.Context(), nil, []hold.Hold{h})[0])
		must(t, k.Release(t.Context(), []hold.Hold{h})[0])
		return
	}
	if !errors.Is(err, wireguard.ErrNone) || !errors.Is(err, kernel.ErrUnsupported) {
		t.Errorf("without WireGuard: %v", err)
	}
	if err := k.Verify(t.Context(), nil, []hold.Hold{h})[0]; !errors.Is(err, hold.ErrGone) {
		t.Errorf("verify: %v", err)
	}
	must(t, k.Release(t.Context(), []hold.Hold{h})[0])
	if found, err := k.Find(t.Context(), nil); err != nil || len(found) > 0 {
		t.Errorf("found are %v, %v", found, err)
	}
	p := hold.Hold{Owner: hold.NewID(), Spec: peerOf(s, "192.0.2.11:51820", "10.244.2.0/24")}
	must(t, s.PeerKind().Release(t.Context(), []hold.Hold{p})[0])
	if strings.Contains(nettest.Snapshot(t, at).String(), s.name()) {
		t.Error("something is left")
	}
}
