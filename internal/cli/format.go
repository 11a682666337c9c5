package cli

import (
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/berth-net/berth/api"
)

// ago writes how long ago a time was: "12s", "5m", "3h", "12d".
func (a *app) ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return span(a.now().Sub(t))
}

func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// count writes a number with its noun: "1 pod", "2 pods".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// size writes a number of bytes in the unit that fits.
func size(n int64) string {
	v, unit := float64(n), 0
	for v >= 1024 && unit < 3 {
		v /= 1024
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMG"[unit-1])
}

// figure writes a number of addresses, a huge one as a power of two.
func figure(n *big.Int) string {
	if n.BitLen() <= 40 {
		return n.String()
	}
	near := new(big.Int).Add(n, new(big.Int).Rsh(n, 16)) // to people 2^64-3 is 2^64
	return fmt.Sprintf("2^%d", near.BitLen()-1)
}

// podName writes a pod as namespace/name; "" if there is none.
func podName(p *api.Pod) string {
	if p == nil || p.Name == "" {
		return ""
	}
	return p.Namespace + "/" + p.Name
}

// shortID cuts a container's id as crictl does.
func shortID(id string) string {
	if len(id) > 13 {
		return id[:13]
	}
	return id
}

// stateInks are the colours of an attachment's states.
var stateInks = map[string]ink{
	api.StateAttaching: yellow, api.StateAttached: green, api.StateReleasing: yellow, api.StateOwed: red,
}

func stateCell(state string) cell { return cell{state, stateInks[state]} }

// stateCounts writes how many attachments there are in each state.
func (a *app) stateCounts(n map[string]int) string {
	var parts []string
	for _, s := range api.States() {
		if n[s] > 0 {
			parts = append(parts, a.ink(stateInks[s], fmt.Sprintf("%d %s", n[s], s)))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
