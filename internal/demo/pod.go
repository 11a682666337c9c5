package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// pod is a network namespace as a runtime makes it, bound to a path.
type pod struct {
	netns     *ns.Netns
	runtime   *libcni.RuntimeConf
	addresses map[string]netip.Addr // by family: family4, family6
	detached  bool                  // DEL has answered success
}

// makePod does what `ip netns add podNN` does, in a folder of the demo.
func (n *node) makePod(number int) (*pod, error) {
	name := fmt.Sprintf("pod%02d", number)
	path := filepath.Join(n.netnsDir(), name)
	netns, err := ns.New(path)
	if err != nil {
		return nil, err
	}
	return &pod{netns: netns, runtime: &libcni.RuntimeConf{
		ContainerID: name, NetNS: path, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "demo"}, {"K8S_POD_NAME", name}},
	}}, nil
}

// links lists the links that the pod has besides lo, as `ip -n podNN link` does.
func (p *pod) links() (names []string, err error) {
	err = p.netns.Do(func() error {
		all, err := net.Interfaces()
		for _, l := range all {
			if l.Name != "lo" {
				names = append(names, l.Name)
			}
		}
		return err
	})
	return names, err
}

// network drives the real plugin as a runtime does, by libcni.
type network struct {
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

func (n *node) network() (network, error) {
	conf := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "demo", "plugins": [{"type": "berth-cni", "root": %q}]}`, n.root)
	list, err := libcni.NetworkConfFromBytes([]byte(conf))
	if err != nil {
		return network{}, fmt.Errorf("reading the demo's CNI configuration: %w", err)
	}
	return network{libcni.NewCNIConfigWithCacheDir([]string{n.bin}, n.cacheDir(), nil), list}, nil
}

// attach is ADD.
func (w network) attach(ctx context.Context, p *pod) error {
	answer, err := w.cni.AddNetworkList(ctx, w.list, p.runtime)
	if err != nil {
		return fmt.Errorf("ADD of %s: %w", p.runtime.ContainerID, err)
	}
	result, err := types100.GetResult(answer)
	if err != nil {
		return fmt.Errorf("reading the result of ADD: %w", err)
	}
	p.addresses = map[string]netip.Addr{}
	for _, ip := range result.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return fmt.Errorf("the result of ADD has the bad address %s", ip.Address.IP)
		}
		p.addresses[familyOf(addr.Unmap())] = addr.Unmap()
	}
	return nil
}

// detach is DEL.
func (w network) detach(ctx context.Context, p *pod) error {
	if err := w.cni.DelNetworkList(ctx, w.list, p.runtime); err != nil {
		return fmt.Errorf("DEL of %s: %w", p.runtime.ContainerID, err)
	}
	p.detached = true
	return nil
}

// width is how many verbs the demo has under way at once.
const width = 4

// each calls f for every pod, width pods at once. It returns how long the calls took, but only for
// calls that f counts.
func each(pods []*pod, f func(*pod) (counts bool, err error)) ([]time.Duration, error) {
	var (
		mu   sync.Mutex
		took []time.Duration
		errs []error
		wg   sync.WaitGroup
		todo = make(chan *pod, len(pods))
	)
	for _, p := range pods {
		todo <- p
	}
	close(todo)
	for range width {
		wg.Go(func() {
			for p := range todo {
				begun := time.Now()
				counts, err := f(p)
				mu.Lock()
				if errs = append(errs, err); counts && err == nil {
					took = append(took, time.Since(begun))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return took, errors.Join(errs...)
}
