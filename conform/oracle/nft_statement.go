package oracle

import (
	"encoding/json"
	"fmt"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// statement tells the statement that begins with an expression, and says how many expressions it has: 0, if nftTeller does not know it.
func (r *nftTeller) statement(at int, p protocols) (text string, n int) {
	if at >= len(r.exprs) {
		return "", 0
	}
	e := r.exprs[at]
	switch known := e.known.(type) {
	case *expr.Counter:
		return "counter", 1
	case *expr.Notrack:
		return "notrack", 1
	case *expr.Verdict:
		if text := verdict(known); text != "" {
			return text, 1
		}
		return "", 0
	case *expr.Limit:
		return limit(known), 1
	case *expr.Quota:
		return fmt.Sprintf("quota %s%d bytes", map[bool]string{true: "over "}[known.Over], known.Bytes), 1
	case *expr.Log:
		return logged(known), 1
	case *expr.Reject:
		return r.reject(known, p), 1
	case *expr.Objref:
		if what := map[int]string{unix.NFT_OBJECT_COUNTER: "counter", unix.NFT_OBJECT_QUOTA: "quota"}[known.Type]; what != "" {
			return fmt.Sprintf("%s name %q", what, known.Name), 1
		}
		return "", 0
	case *expr.Match:
		return extension("match", known.Name, known.Rev, known.Info), 1
	case *expr.Target:
		return extension("target", known.Name, known.Rev, known.Info), 1
	case *expr.Immediate, *expr.NAT, *expr.Masq, *expr.Redir:
		return r.translation(at)
	}
	if text, n := r.mapped(at, p); n > 0 {
		return text, n
	}
	return r.match(at, p)
}

func verdict(v *expr.Verdict) string {
	switch v.Kind {
	case expr.VerdictAccept:
		return "accept"
	case expr.VerdictDrop:
		return "drop"
	case expr.VerdictReturn:
		return "return"
	case expr.VerdictContinue:
		return "continue"
	case expr.VerdictJump:
		return "jump " + v.Chain
	case expr.VerdictGoto:
		return "goto " + v.Chain
	}
	return ""
}

// limit is told as nft(8) does, which leaves the usual burst out.
func limit(l *expr.Limit) string {
	unit := map[expr.LimitTime]string{expr.LimitTimeSecond: "second", expr.LimitTimeMinute: "minute", expr.LimitTimeHour: "hour", expr.LimitTimeDay: "day", expr.LimitTimeWeek: "week"}[l.Unit]
	over := map[bool]string{true: "over "}[l.Over]
	if l.Type == expr.LimitTypePkts {
		text := fmt.Sprintf("limit rate %s%d/%s", over, l.Rate, unit)
		if l.Burst != 5 {
			text += fmt.Sprintf(" burst %d packets", l.Burst)
		}
		return text
	}
	text := fmt.Sprintf("limit rate %s%s/%s", over, amount(l.Rate), unit)
	if l.Burst != 0 {
		text += " burst " + amount(uint64(l.Burst))
	}
	return text
}

// amount tells bytes in the greatest unit in which they are a whole number.
func amount(n uint64) string {
	unit := 0
	units := []string{"bytes", "kbytes", "mbytes"}
	for unit < len(units)-1 && n > 0 && n%1024 == 0 {
		n /= 1024
		unit++
	}
	return fmt.Sprintf("%d %s", n, units[unit])
}

func logged(l *expr.Log) string {
	has := func(attr int) bool { return l.Key&(1<<attr) != 0 }
	text := "log"
	if has(unix.NFTA_LOG_PREFIX) {
		text += fmt.Sprintf(" prefix %q", l.Data)
	}
	if has(unix.NFTA_LOG_GROUP) {
		text += fmt.Sprintf(" group %d", l.Group)
	}
	if has(unix.NFTA_LOG_SNAPLEN) {
		text += fmt.Sprintf(" snaplen %d", l.Snaplen)
	}
	if has(unix.NFTA_LOG_QTHRESHOLD) {
		text += fmt.Sprintf(" queue-threshold %d", l.QThreshold)
	}
	levels := []string{"emerg", "alert", "crit", "err", "warn", "notice", "info", "debug", "audit"}
	if level := l.Level; has(unix.NFTA_LOG_LEVEL) && level != expr.LogLevelWarning { // which is the usual one
		if int(level) < len(levels) {
			text += " level " + levels[level]
		} else {
			text += fmt.Sprintf(" level %d", level)
		}
	}
	if has(unix.NFTA_LOG_FLAGS) && l.Flags != 0 {
		if l.Flags == expr.LogFlagsMask {
			return text + " flags all"
		}
		text += fmt.Sprintf(" flags %#x", uint32(l.Flags))
	}
	return text
}

// unreachable are nft's names of ICMP codes, by the type of the expression (NFT_REJECT_) and, of ICMP's own, by the protocol.
var unreachable = map[string]map[uint8]string{
	"icmp":   {0: "net-unreachable", 1: "host-unreachable", 2: "prot-unreachable", 3: "port-unreachable", 9: "net-prohibited", 10: "host-prohibited", 13: "admin-prohibited"},
	"icmpv6": {0: "no-route", 1: "admin-prohibited", 3: "addr-unreachable", 4: "port-unreachable", 5: "policy-fail", 6: "reject-route"},
	"icmpx":  {0: "no-route", 1: "port-unreachable", 2: "host-unreachable", 3: "admin-prohibited"},
}

func (r *nftTeller) reject(e *expr.Reject, p protocols) string {
	of := map[uint32]string{unix.NFT_REJECT_ICMP_UNREACH: map[string]string{"ip": "icmp", "ip6": "icmpv6"}[p[netLayer]], unix.NFT_REJECT_ICMPX_UNREACH: "icmpx"}[e.Type]
	name := unreachable[of][e.Code]
	alone := map[nft.TableFamily]string{nft.TableFamilyIPv4: "icmp", nft.TableFamilyIPv6: "icmpv6"}[r.family]
	switch {
	case e.Type == unix.NFT_REJECT_TCP_RST && e.Code == 0:
		return "reject with tcp reset"
	case name == "":
		return fmt.Sprintf("reject with type %d code %d", e.Type, e.Code)
	case name == "port-unreachable" && (of == alone || of == "icmpx" && alone == ""): // the usual one
		return "reject"
	}
	return "reject with " + of + " " + name
}

// extension tells a match or a target of iptables. nft(8) tells only its name.
func extension(what, name string, revision uint32, info any) string {
	raw, err := json.Marshal(info)
	if err != nil {
		raw = fmt.Appendf(nil, "%#v", info)
	}
	return fmt.Sprintf("xt %s %q rev %d %s", what, name, revision, raw)
}
