package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
)

// BaseChain is a base chain of any table of a namespace. Chains that iptables makes by its nftables
// backend are among them; chains of its legacy backend are not.
type BaseChain struct {
	Family, Table, Name string // as nft(8) writes them
	Type, Hook          string
	Priority            int32
	Drops               bool // policy drop
	Dormant             bool // its table does nothing

	chain *nftables.Chain
}

// String writes the chain as its listing begins.
func (c BaseChain) String() string {
	policy := "accept"
	if c.Drops {
		policy = "drop"
	}
	text := fmt.Sprintf("chain %s %s %s { type %s hook %s priority %d; policy %s; }",
		c.Family, c.Table, c.Name, c.Type, c.Hook, c.Priority, policy)
	if c.Dormant {
		text += " (its table is dormant)"
	}
	return text
}

var familyWords = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	nftables.TableFamilyARP: "arp", nftables.TableFamilyNetdev: "netdev", nftables.TableFamilyBridge: "bridge",
}

// hookWord writes the hook of a chain of a family. The families that see no IP number their
// hooks in other ways (include/uapi/linux/netfilter_arp.h, netfilter.h).
func hookWord(f nftables.TableFamily, h nftables.ChainHook) string {
	switch {
	case f == nftables.TableFamilyARP && h < 3:
		return [...]string{"input", "output", "forward"}[h]
	case f == nftables.TableFamilyNetdev && h < 2:
		return [...]string{"ingress", "egress"}[h]
	case h == 5:
		return "ingress"
	}
	return hook(h).String()
}

// BaseChains lists the base chains of all tables in the calling thread's namespace.
//
//	nft list chains
func BaseChains() ([]BaseChain, error) {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, kernel.Classify(fmt.Errorf("opening nftables: %w", err))
	}
	defer func() { _ = c.CloseLasting() }()
	return baseChains(c)
}

func baseChains(c *nftables.Conn) (all []BaseChain, err error) {
	chains, err := c.ListChains()
	if err != nil {
		return nil, kernel.Classify(fmt.Errorf("listing nftables chains: %w", errnoIn(err)))
	}
	tables, err := c.ListTables()
	if err != nil {
		return nil, kernel.Classify(fmt.Errorf("listing nftables tables: %w", errnoIn(err)))
	}
	for _, chain := range chains {
		if chain.Hooknum == nil || chain.Priority == nil {
			continue // no base chain: packets come to it from other chains only
		}
		all = append(all, BaseChain{
			Family: familyWords[chain.Table.Family], Table: chain.Table.Name, Name: chain.Name,
			Type: string(chain.Type), Hook: hookWord(chain.Table.Family, *chain.Hooknum), Priority: int32(*chain.Priority),
			Drops: chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop, chain: chain,
			Dormant: slices.ContainsFunc(tables, func(t *nftables.Table) bool {
				return t.Name == chain.Table.Name && t.Family == chain.Table.Family && isDormant(t)
			}),
		})
	}
	return all, nil
}

// isDormant reads a table's flags, which package nftables reads in the machine's byte order, and
// not in the network's.
func isDormant(t *nftables.Table) bool {
	const dormant = 1 // NFT_TABLE_F_DORMANT
	return number(binary.NativeEndian.AppendUint32(nil, t.Flags))&dormant != 0
}

// errnoIn wraps the errno into an error of package nftables again. The package keeps only the errno's
// text.
func errnoIn(err error) error {
	for _, errno := range []unix.Errno{unix.ENOENT, unix.EPERM, unix.EINTR, unix.ENOBUFS} {
		if !errors.Is(err, errno) && strings.HasSuffix(err.Error(), errno.Error()) {
			return fmt.Errorf("%w (%w)", err, errno)
		}
	}
	return err
}
