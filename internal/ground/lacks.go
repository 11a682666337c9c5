package ground

import (
	"fmt"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds/table"
)

// lacks lists the parts of the agent's table that a kernel may not support, with the API's
// word for each, and with what happens if the part is missing.
var lacks = []struct {
	part nft.Parts
	word string
	so   string
}{
	{nft.Sources, api.LackSources, "pods can send from others' addresses, and others from pods' addresses (nft_fib)"},
	{nft.Invalid, api.LackInvalid, "packets that belong to no connection leave the node with pods' addresses (nft_ct)"},
	{nft.Limit, api.LackConnections, "one pod can fill the connection tracking table (nft_connlimit, nft_numgen)"},
	{nft.Multipath, api.LackMultipath, "a program of the node that speaks MPTCP with a pod is told only after a timeout that the pod is gone (nft_exthdr, Linux 5.18)"},
	{nft.HostPorts, api.LackHostPorts, "pods with host ports are not attached (nft_nat, nft_masq, nft_fib, nft_ct)"},
	{nft.Bridges, api.LackBridges, "pods behind the bridge of another plugin get no host ports (nf_tables_bridge)"},
	{nft.Shadows, api.LackShadows, "a pod can get the host port of another pod towards a machine that it sends to (Linux 6.5)"},
}

// lacking returns the API's words for parts that the kernel lacks.
func lacking(p nft.Parts) []string {
	var words []string
	for _, l := range lacks {
		if p&l.part != 0 {
			words = append(words, l.word)
		}
	}
	return words
}

// SayLacks is called whenever the parts of the table that the kernel lacks change. It
// writes them into the log.
func (g *Ground) SayLacks(p nft.Parts) {
	if p == 0 {
		g.Log.Info("the kernel now supports all rules of the nftables table")
		return
	}
	g.Log.Warn("the kernel does not support some rules of the nftables table; each sweep tries them again", "lacks", lacking(p), "so", Because(p))
}

// SayUnpoliced is called once if the kernel cannot drop what a pod sends above its egressRate. It
// writes that into the log.
func (g *Ground) SayUnpoliced(err error) {
	g.Log.Warn("the node cannot hold pods to their egressRate: only the limit at the pod's own end applies, and a pod with CAP_NET_RAW can exceed it", "err", err)
}

// SayUnhelped is called once if no helper process can delete links. It writes that into the log.
func (g *Ground) SayUnhelped(err error) {
	g.Log.Warn("the agent has no helper process, and deletes links itself: if the agent is killed while a pod's program uses a deleted interface, no other agent can start before that program ends", "err", err)
}

// LackFindings returns an audit's findings about the parts of the table that the kernel
// lacks.
func (g *Ground) LackFindings() []api.Finding {
	p := g.node.Table.Lacks()
	if p == 0 {
		return nil
	}
	return []api.Finding{{Type: api.FindingMissing, Kind: table.KindName, What: (&table.Spec{Instance: g.Instance}).String(),
		Detail: fmt.Sprintf("this kernel does not support some rules of the table: %s", Because(p))}}
}

// Because says what happens if the kernel lacks parts of the table.
func Because(p nft.Parts) string {
	var so []string
	for _, l := range lacks {
		if p&l.part != 0 {
			so = append(so, l.word+": "+l.so)
		}
	}
	return strings.Join(so, "; ")
}

// Lacks returns the API's words for the parts of the table that the kernel lacks.
func (g *Ground) Lacks() []string { return lacking(g.node.Table.Lacks()) }
