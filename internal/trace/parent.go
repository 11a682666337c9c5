package trace

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
)

// parent is the span of the program that asks, in that program's trace.
type parent struct {
	trace   [2]uint64
	span    uint64
	sampled bool
}

// parseParent reads a traceparent (W3C Trace Context, section 3.2). A wrong header, or more than one
// header, counts as no header: then a trace begins here (section 4.3).
func parseParent(headers []string) (p parent, ok bool) {
	if len(headers) != 1 {
		return p, false
	}
	// VERSION-TRACE-PARENT-FLAGS; later versions may say more behind another dash.
	s := headers[0]
	if len(s) < 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' || strings.ToLower(s) != s {
		return p, false
	}
	version, ok := bytesOf(s[:2], 1)
	if !ok || version[0] == 0xff || len(s) > 55 && (version[0] == 0 || s[55] != '-') {
		return p, false
	}
	trace, ok1 := bytesOf(s[3:35], 16)
	span, ok2 := bytesOf(s[36:52], 8)
	flags, ok3 := bytesOf(s[53:55], 1)
	if !ok1 || !ok2 || !ok3 {
		return p, false
	}
	p.trace = [2]uint64{binary.BigEndian.Uint64(trace), binary.BigEndian.Uint64(trace[8:])}
	p.span = binary.BigEndian.Uint64(span)
	p.sampled = flags[0]&1 != 0
	return p, p.trace != [2]uint64{} && p.span != 0
}

func bytesOf(s string, n int) ([]byte, bool) {
	b, err := hex.DecodeString(s)
	return b, err == nil && len(b) == n
}
