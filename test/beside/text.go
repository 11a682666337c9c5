package beside

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"github.com/berth-net/berth/conform/oracle"
)

// What differs between two pods of one kind: random MACs, and names of links that plugins make of random numbers or of the container's name.
var (
	someMAC  = regexp.MustCompile(`\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b`)
	someLink = regexp.MustCompile(`\b(veth[0-9a-f]{8}|bwp[0-9a-f]{12})\b`)
)

// Asked begins the MACs that pods ask for.
const Asked = "02:00:5e:10:"

// Plain replaces in a text what differs between two pods of one kind. netns is the path of the pod's network namespace; "": the text has none.
func Plain(text, netns string) string {
	if netns != "" {
		text = strings.ReplaceAll(text, netns, "NETNS")
	}
	text = someLink.ReplaceAllString(text, "LINK")
	return someMAC.ReplaceAllStringFunc(text, func(mac string) string {
		if strings.HasPrefix(mac, Asked) {
			return mac
		}
		return "MAC"
	})
}

// Lines returns the lines of a state about links, addresses, routes, rules and limits, plain, without those of IPv6 that the kernel makes in its
// own time, and without those that begin with one of the prefixes.
func Lines(state oracle.State, netns string, without ...string) (lines []string) {
	for line := range strings.Lines(state.Only("link", "address", "route", "rule", "qdisc").But(without).String()) {
		if !strings.Contains(line, "fe80::") && !strings.Contains(line, "ff00::/8") {
			lines = append(lines, Plain(strings.ReplaceAll(strings.TrimSpace(line), ",lower_up", ""), netns))
		}
	}
	slices.Sort(lines)
	return lines
}

// JSON returns a JSON text with its keys in order and a line for each; any other text as it is.
func JSON(raw []byte) string {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	out, _ := json.MarshalIndent(v, "", " ") // what was JSON can be JSON again
	return string(out)
}
