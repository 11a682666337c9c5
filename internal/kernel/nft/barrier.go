package nft

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/stamp"
)

// Barrier is another program's chain that drops packets that pods send through the node, or may drop
// them.
type Barrier struct {
	BaseChain
	IPv6 bool // the chain drops the pods' IPv6 packets; else their IPv4 packets
	// Sure says that for a pool every way through the chain ends in a drop. Otherwise only some ways
	// end in a drop: the way depends on what the packet is, or on rules that Barriers cannot judge.
	Sure bool
}

// Barriers finds the chains that stop pods. For each family of s.Pools it judges what forward
// chains of other tables do with a packet that begins a connection from a pod to somewhere
// beyond an uplink: firewalls that know nothing of Berth usually make the mistake of dropping such
// packets. Barriers reads only the rules that such a packet can come to.
func Barriers(s Sender) ([]Barrier, error) {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, kernel.Classify(fmt.Errorf("opening nftables: %w", err))
	}
	defer func() { _ = c.CloseLasting() }()
	chains, err := baseChains(c)
	if err != nil {
		return nil, err
	}
	var found []Barrier
	for _, b := range chains {
		if b.Hook != hookForward.String() || b.Type != "filter" || b.Family == "bridge" || b.Dormant || stamp.IsTable(b.Table) {
			continue
		}
		for _, v6 := range []bool{false, true} {
			if b.Family == "ip" && v6 || b.Family == "ip6" && !v6 {
				continue
			}
			barrier := Barrier{BaseChain: b, IPv6: v6}
			stops := false
			for _, pool := range s.Pools {
				if pool.Addr().Is6() != v6 {
					continue
				}
				one := s
				one.Pools = []netip.Prefix{pool} // a rule may let one pool's packets through, and not the next pool's
				fate := b.fate(judge{conn: c, sender: one, ipv6: v6, budget: mostRules})
				stops = stops || fate&dropped != 0
				barrier.Sure = barrier.Sure || fate == dropped
			}
			if stops {
				found = append(found, barrier)
			}
		}
	}
	return found, nil
}

// fate returns whether the chain accepts or drops the packet that a judge follows, or may do both.
func (b BaseChain) fate(j judge) fate {
	all := j.chain(b.chain, 0)
	switch at := goesOn | returns; {
	case all&at == 0:
		return all
	case b.Drops:
		return all&^at | dropped
	default:
		return all&^at | accepted
	}
}

const (
	mostRules = 20_000 // how many rules and elements a judge reads for one base chain
	mostDeep  = 16     // how many jumps may be nested, as many as the kernel allows (NFT_JUMP_STACK_SIZE)
)

// fate is a set of what may become of the packet.
type fate uint8

const (
	accepted fate = 1 << iota
	dropped
	goesOn   // the packet comes to the next rule or, as a chain's fate, to the chain's end
	returns  // the packet leaves the chain for the chain that it came from
	anything = accepted | dropped | goesOn
)

// answer says whether a rule's matches are true of the packet.
type answer uint8

const (
	no answer = iota
	maybe
	yes
)

func not(a answer) answer { return yes - a }

// judge follows one packet through a table.
type judge struct {
	conn   *nftables.Conn
	sender Sender
	ipv6   bool
	budget int
}

// chain returns what may become of the packet in a chain. If the judge cannot know, the answer
// includes every outcome that it cannot exclude.
func (j *judge) chain(c *nftables.Chain, depth int) fate {
	rules, err := j.conn.GetRules(c.Table, c)
	if j.budget -= len(rules) + 1; err != nil || depth > mostDeep || j.budget < 0 {
		return anything
	}
	var all fate
	for _, r := range rules {
		matches, does := j.rule(r, depth)
		if matches == no || does == goesOn {
			continue
		}
		all |= does &^ goesOn
		if matches == yes && does&goesOn == 0 {
			return all
		}
	}
	return all | goesOn
}

// rule returns whether a rule applies to the packet, and what becomes of the packet if the rule does.
func (j *judge) rule(r *nftables.Rule, depth int) (answer, fate) {
	at := matcher{judge: j, rule: r, regs: map[uint32]loaded{}}
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Verdict:
			return at.so(), j.verdict(r.Table, e, depth)
		case *expr.Reject:
			return at.so(), dropped
		case *expr.Target:
			if e.Name == "REJECT" {
				return at.so(), dropped
			}
		case *expr.Queue:
			return at.so(), anything
		case *expr.Lookup:
			if e.IsDestRegSet && e.DestRegister == 0 { // a verdict map, whose verdicts package nftables does not read
				return min(maybe, at.so()), anything
			}
			at.meets(e)
		default:
			at.meets(e)
		}
		if at.so() == no {
			return no, goesOn
		}
	}
	return at.so(), goesOn
}

// verdict returns what a verdict does. After a jump a packet comes back to the next rule. After a goto
// it comes back to where the end of the present chain would have sent it.
func (j *judge) verdict(t *nftables.Table, v *expr.Verdict, depth int) fate {
	switch v.Kind {
	case expr.VerdictAccept, expr.VerdictStop:
		return accepted
	case expr.VerdictDrop:
		return dropped
	case expr.VerdictJump, expr.VerdictGoto:
		there := j.chain(&nftables.Chain{Name: v.Chain, Table: t}, depth+1)
		if there&(goesOn|returns) == 0 {
			return there
		}
		if v.Kind == expr.VerdictGoto {
			return there&^goesOn | returns
		}
		return there&^returns | goesOn
	case expr.VerdictReturn:
		return returns
	case expr.VerdictContinue, expr.VerdictBreak:
		return goesOn
	}
	return anything
}

// elements returns the elements of a set, without the ends of its intervals.
func (j *judge) elements(t *nftables.Table, l *expr.Lookup) ([]nftables.SetElement, error) {
	s, err := j.conn.GetSetByName(t, l.SetName)
	if err != nil {
		return nil, err
	}
	elements, err := j.conn.GetSetElements(s)
	if j.budget -= len(elements); err == nil && j.budget < 0 {
		return nil, errTooMany
	}
	return slices.DeleteFunc(elements, func(e nftables.SetElement) bool { return e.IntervalEnd }), err
}
