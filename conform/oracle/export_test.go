package oracle

import (
	"fmt"
	"strings"

	nft "github.com/google/nftables"
)

// Nftables is nftables, for tests in namespaces.
func Nftables() ([]string, error) { return nftables() }

// TellRules returns the words of each rule of a table, and the bytes that the kernel has of it.
func TellRules(t *nft.Table) (words, bytes []string, err error) {
	rules, err := rulesOf(t)
	teller := nftTeller{family: t.Family}
	for _, r := range rules {
		var raw strings.Builder
		for _, e := range r.exprs {
			fmt.Fprintf(&raw, " %s:%x", e.name, e.data)
		}
		teller.exprs = r.exprs
		words, bytes = append(words, teller.tell()+r.comment()), append(bytes, fmt.Sprintf("%s note:%x", raw.String(), r.note))
	}
	return words, bytes, err
}
