package metrics

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// selector is one selector of a PromQL expression.
type selector struct {
	series   string
	matchers []matcher
}

type matcher struct{ label, op, value string }

// These tell the words of a PromQL expression from its strings and ranges, at which nobody looks
// here. promtool checks the grammar.
var (
	token       = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[a-zA-Z_:][a-zA-Z0-9_:]*|[0-9][0-9.a-z]*|\s+|=~|!~|!=|.`)
	word        = regexp.MustCompile(`^[a-zA-Z_:]`)
	labelLists  = []string{"by", "without", "on", "ignoring", "group_left", "group_right"}
	otherWords  = []string{"and", "or", "unless", "bool", "offset", "inf", "nan"}
	targetLabel = []string{"instance", "job"} // Prometheus adds these labels to each series
)

// selectors returns the selectors of an expression, and the labels in its lists (labelLists).
func selectors(expr string) (found []selector, grouped []string) {
	tokens := slices.DeleteFunc(token.FindAllString(expr, -1), func(s string) bool { return strings.TrimSpace(s) == "" })
	at := func(i int) string {
		if i < len(tokens) {
			return tokens[i]
		}
		return ""
	}
	for i := 0; i < len(tokens); i++ {
		switch name := tokens[i]; {
		case !word.MatchString(name), slices.Contains(otherWords, strings.ToLower(name)):
		case slices.Contains(labelLists, name):
			if at(i+1) != "(" {
				continue
			}
			for i += 2; i < len(tokens) && tokens[i] != ")"; i++ {
				if tokens[i] != "," {
					grouped = append(grouped, tokens[i])
				}
			}
		case at(i+1) == "(", slices.Contains(labelLists, at(i+1)): // a function, or an aggregation
		default:
			s := selector{series: name}
			if at(i+1) == "{" {
				for i += 2; i < len(tokens) && tokens[i] != "}"; i++ {
					if tokens[i] != "," {
						s.matchers = append(s.matchers, matcher{tokens[i], at(i + 1), strings.Trim(at(i+2), `"`)})
						i += 2
					}
				}
			}
			found = append(found, s)
		}
	}
	return found, grouped
}

func TestSelectors(t *testing.T) {
	found, grouped := selectors(`sum without (verb) (rate(a_total{verb="add",result=~"x|y"}[10m])) / on(b) c > 0.1 or time() - (d_seconds{job!~"$j"} offset 5m)`)
	if got := fmt.Sprint(found, grouped); got != `[{a_total [{verb = add} {result =~ x|y}]} {c []} {d_seconds [{job !~ $j}]}] [verb b]` {
		t.Errorf("%s", got)
	}
}

// wrong returns what an expression says that an agent does not expose.
func (e exposition) wrong(expr string) (all []string) {
	labels := slices.Clone(targetLabel)
	found, grouped := selectors(expr)
	for _, s := range found {
		m := e.find(s.series)
		switch {
		case s.series == "up" || s.series == "ALERTS": // Prometheus's own
			continue
		case m == nil:
			all = append(all, "no metric "+s.series)
			continue
		case m.kind == "histogram" && m.name == s.series:
			all = append(all, s.series+" has no series of that very name")
		}
		own := slices.Concat(m.labels, targetLabel)
		if m.kind == "histogram" && strings.HasSuffix(s.series, "_bucket") {
			own = append(own, "le")
		}
		labels = append(labels, own...)
		for _, match := range s.matchers {
			if !slices.Contains(own, match.label) {
				all = append(all, s.series+" has no label "+match.label)
			} else if m.values[match.label] != nil {
				all = append(all, m.unknown(match)...)
			}
		}
	}
	for _, label := range grouped {
		if !slices.Contains(labels, label) {
			all = append(all, "no label "+label)
		}
	}
	return all
}

// users are labels whose values a user chooses.
var users = []string{"pool", "cidr", "version", "goversion"}

// unknown returns the values of a matcher that the metric's label never has.
func (m *metric) unknown(match matcher) (all []string) {
	if slices.Contains(users, match.label) {
		return nil
	}
	values := []string{match.value}
	if strings.HasSuffix(match.op, "~") {
		values = strings.Split(match.value, "|")
	}
	for _, v := range values {
		if !m.values[match.label][v] {
			all = append(all, fmt.Sprintf("%s is never %q for %s", match.label, v, m.name))
		}
	}
	return all
}
