package table

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nft"
)

// The host ports of pods are elements of the table's maps. Each pod's host ports are a hold of the kind
// hostports (kinds/hostports), which maps and unmaps them by Keeper. Keeper has to know all host ports,
// because it writes them again together with the table.

// hostPorts are the host ports of pods, by their owners and by the ports of the node: a node has
// thousands of them, and an ADD must not go through them all.
type hostPorts struct {
	of map[hold.ID][]nft.Mapping
	at map[nodePort]hold.ID
}

// nodePort is a port of the node, at one of its addresses or at all of them.
type nodePort struct {
	protocol string
	host     netip.AddrPort
}

func nodePortOf(m nft.Mapping) nodePort { return nodePort{m.Protocol, m.Host} }

func newHostPorts() *hostPorts {
	return &hostPorts{of: map[hold.ID][]nft.Mapping{}, at: map[nodePort]hold.ID{}}
}

// set replaces the host ports of an owner; nil: the owner has none.
func (h *hostPorts) set(owner hold.ID, ports []nft.Mapping) {
	for _, m := range h.of[owner] {
		delete(h.at, nodePortOf(m))
	}
	if delete(h.of, owner); len(ports) > 0 {
		h.of[owner] = ports
	}
	for _, m := range ports {
		h.at[nodePortOf(m)] = owner
	}
}

// Map adds an owner's host ports to the table. If the table has them already, Map succeeds. If another
// owner, or something else, has one of the ports, the error is hold.ErrForeign. If somebody has taken
// the table away, Map puts it back.
func (k *Keeper) Map(owner hold.ID, ports []nft.Mapping) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.learn(); err != nil {
		return err
	}
	if k.tables.Lacks()&nft.HostPorts != 0 {
		return fmt.Errorf("mapping host ports: %w: this kernel lacks something of what they need (nft_nat, nft_masq, nft_fib, nft_ct)", kernel.ErrUnsupported)
	}
	for _, p := range ports {
		if p.BridgePort != 0 && k.tables.Lacks()&nft.Bridges != 0 {
			return fmt.Errorf("mapping %s: %w: this kernel has no nftables of family bridge", p, kernel.ErrUnsupported)
		}
		if other, has := k.ports.at[nodePortOf(p)]; has && other != owner {
			return fmt.Errorf("mapping %s: %w: %s", p, hold.ErrForeign, other)
		}
	}
	was := k.ports.of[owner]
	k.ports.set(owner, slices.SortedFunc(slices.Values(ports), nft.Mapping.Compare))
	err := k.tables.Map(k.want.Instance, portsOf(owner, ports))
	if errors.Is(err, kernel.ErrNotFound) && k.held != "" {
		k.sound.Store(0)
		k.differs()
		err = k.write(k.wanted(k.held, k.want.Instance))
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, kernel.ErrExists) || errors.Is(err, kernel.ErrBusy) {
		there, look := k.read()
		if look != nil {
			k.unsure = true
			return errors.Join(err, look) // the ports may be in the table: the owner's release removes them
		}
		if !slices.ContainsFunc(ports, func(m nft.Mapping) bool { return !slices.Contains(there[owner], m) }) {
			return nil // the kernel has mapped all ports: the error was only about its answer
		}
		err = fmt.Errorf("%w: %w", hold.ErrForeign, err) // and so the kernel has mapped nothing
	} else if undone := k.tables.Unmap(k.want.Instance, portsOf(owner, ports)); undone != nil {
		k.unsure = true
		return errors.Join(err, undone) // the ports may be in the table: the owner's release removes them
	}
	k.ports.set(owner, was)
	return err
}

// Close lets no packet of owners' bound host ports leave the node any more (nft.Mapping.Via): in the table they are closed
// until Unmap. It leaves other host ports alone.
func (k *Keeper) Close(owners []hold.ID) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.learn(); err != nil {
		return err
	}
	var all []nft.Port
	closed := map[hold.ID][]nft.Mapping{}
	for _, owner := range owners {
		all = append(all, portsOf(owner, k.ports.of[owner])...)
		ports := slices.Clone(k.ports.of[owner])
		for i := range ports {
			if ports[i].Via != 0 {
				ports[i].Via = nft.NoLink
			}
		}
		closed[owner] = ports
	}
	if err := k.tables.Close(k.want.Instance, all); err != nil {
		k.unsure = true
		return err
	}
	for owner, ports := range closed {
		k.ports.set(owner, ports)
	}
	return nil
}

// Unmap removes the host ports of owners from the table. "Not there" is success.
func (k *Keeper) Unmap(owners []hold.ID) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.learn(); err != nil {
		return err
	}
	var gone []nft.Port
	for _, owner := range owners {
		gone = append(gone, portsOf(owner, k.ports.of[owner])...)
	}
	if err := k.tables.Unmap(k.want.Instance, gone); err != nil {
		k.unsure = true
		return err
	}
	for _, owner := range owners {
		k.ports.set(owner, nil)
	}
	return nil
}

// Mapped returns the host ports in the table, as the kernel has them. The caller must not change the
// lists.
func (k *Keeper) Mapped() (map[hold.ID][]nft.Mapping, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held != "" && k.still() {
		return maps.Clone(k.ports.of), nil
	}
	return k.read()
}

// Others returns the host ports in the tables of the node's other agents, whether or not they run, by
// the tables' names.
func (k *Keeper) Others() (map[string][]nft.Port, error) {
	return k.tables.Others(k.name)
}

// UnmapOther removes host ports from the table of another instance, whose agent is lost. If whole is
// set, it deletes that table with all that is in it. "Not there" is success.
func (k *Keeper) UnmapOther(instance string, gone []nft.Port, whole bool) error {
	if whole {
		return k.tables.Delete(instance)
	}
	return k.tables.Unmap(instance, gone)
}

// Strays returns those among addrs that have begun a connection with somebody by a link that is none of the instance's
// (nft.Tables.Strays). whole is false if the table may have lost some of them, or may not have noted them: others have
// touched it since MarkStrays, or Run does not watch it. Strays waits for nobody who changes the table.
func (k *Keeper) Strays(addrs []netip.Addr) (found []netip.Addr, whole bool, err error) {
	found, whole, err = k.tables.Strays(k.name, addrs)
	return found, whole && k.noting.Load() && k.Intact(), err
}

// Noted returns all addresses that Strays could find.
func (k *Keeper) Noted() ([]netip.Addr, error) { return k.tables.Noted(k.name) }

// ClearStrays says that addresses which Strays has found are noted no more.
func (k *Keeper) ClearStrays(addrs []netip.Addr) error { return k.tables.ClearStrays(k.name, addrs) }

// MarkStrays makes Strays whole again (nft.Tables.MarkStrays). If the kernel lacks what this needs, the error is
// kernel.ErrUnsupported; if the table is not intact, kernel.ErrAgain.
func (k *Keeper) MarkStrays() error {
	if k.tables.Lacks()&nft.HostPorts != 0 {
		return fmt.Errorf("noting strays: %w: this kernel lacks something of what host ports need", kernel.ErrUnsupported)
	}
	if !k.Intact() {
		return fmt.Errorf("noting strays: %w: the table is not as it should be", kernel.ErrAgain)
	}
	k.noting.Store(true) // before the mark: whatever Run hears of meanwhile counts
	if err := k.tables.MarkStrays(k.name); err != nil {
		k.noting.Store(false)
		return err
	}
	return nil
}

func (k *Keeper) read() (map[hold.ID][]nft.Mapping, error) {
	all, err := k.tables.Mapped(k.want.Instance)
	if err != nil {
		return nil, err
	}
	ports := map[hold.ID][]nft.Mapping{}
	for _, p := range all {
		ports[hold.ID(p.Owner)] = append(ports[hold.ID(p.Owner)], p.Mapping)
	}
	return ports, nil
}

// learn reads which host ports a former agent has left in the table, once. learn keeps only host ports
// that the ledger has: somebody may have changed the table meanwhile, or brought back an older table,
// and other pods may have the addresses by now. Every other host port is a difference that Keeper puts
// right. The caller holds k.mu.
func (k *Keeper) learn() error {
	if k.ports != nil {
		return nil
	}
	ports, err := k.read()
	if err != nil {
		return err
	}
	k.ports = newHostPorts()
	for owner, mapped := range ports {
		k.ports.set(owner, k.kept(owner, mapped))
	}
	k.sayAstray(ports)
	return nil
}

// sayAstray calls astray with host ports of the kernel's table that no owner has. The caller holds k.mu.
func (k *Keeper) sayAstray(there map[hold.ID][]nft.Mapping) {
	var all []nft.Mapping
	for owner, mapped := range there {
		for _, m := range mapped {
			if !slices.Contains(k.ports.of[owner], m) {
				all = append(all, m)
			}
		}
	}
	if k.found = all; len(all) > 0 {
		k.astray(all)
	}
}

// allPorts returns all host ports that should be in the table. The caller holds k.mu.
func (k *Keeper) allPorts() []nft.Port {
	var all []nft.Port
	for owner, ports := range k.ports.of {
		all = append(all, portsOf(owner, ports)...)
	}
	return all
}

func portsOf(owner hold.ID, mapped []nft.Mapping) []nft.Port {
	ports := make([]nft.Port, len(mapped))
	for i, m := range mapped {
		ports[i] = nft.Port{Owner: string(owner), Mapping: m}
	}
	return ports
}
