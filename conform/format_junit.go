package conform

import (
	"encoding/xml"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// The elements of JUnit's XML that CI systems read.
type (
	junitSuites struct {
		XMLName  xml.Name   `xml:"testsuites"`
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Skipped  int        `xml:"skipped,attr"`
		Errors   int        `xml:"errors,attr"`
		Time     string     `xml:"time,attr"`
		Suite    junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name       string          `xml:"name,attr"`
		Tests      int             `xml:"tests,attr"`
		Failures   int             `xml:"failures,attr"`
		Skipped    int             `xml:"skipped,attr"`
		Errors     int             `xml:"errors,attr"`
		Time       string          `xml:"time,attr"`
		Timestamp  string          `xml:"timestamp,attr"`
		Properties []junitProperty `xml:"properties>property"`
		Cases      []junitCase     `xml:"testcase"`
	}
	junitProperty struct {
		Name  string `xml:"name,attr"`
		Value string `xml:"value,attr"`
	}
	junitCase struct {
		Class   string     `xml:"classname,attr"`
		Name    string     `xml:"name,attr"`
		Time    string     `xml:"time,attr"`
		Failure *junitWhy  `xml:"failure"`
		Skipped *junitWhy  `xml:"skipped"`
		Out     *junitText `xml:"system-out"`
	}
	junitWhy struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr,omitempty"`
		Text    string `xml:",chardata"`
	}
	junitText struct {
		Text string `xml:",chardata"`
	}
)

// writeJUnit writes a report for CI: fail, leak and flaky become failures, and unsupported becomes
// skipped, as do known failures. A known failure that passes is a failure.
func (r *Report) writeJUnit(w io.Writer) error {
	bad, skipped := len(r.Unexpected), r.Count(Unsupported)
	for _, one := range r.Results {
		switch {
		case one.Known != nil:
			skipped++
		case one.faulty():
			bad++
		}
	}
	s := junitSuite{
		Name: r.Network, Tests: len(r.Results) + len(r.Unexpected), Failures: bad, Skipped: skipped,
		Time: seconds(r.Took), Timestamp: r.When.UTC().Format("2006-01-02T15:04:05"),
		Properties: []junitProperty{
			{"suite", r.Suite}, {"conf", r.Conf}, {"cniVersion", r.Version}, {"kernel", r.Kernel}, {"privilege", r.Privilege},
			{"interrupted", strconv.FormatBool(r.Interrupted)},
		},
	}
	for _, p := range r.Plugins {
		s.Properties = append(s.Properties, junitProperty{"plugin " + p.Type, strings.Join(p.Versions, ", ")})
	}
	for _, one := range r.Results {
		s.Cases = append(s.Cases, junitOf(one))
	}
	for _, k := range r.Unexpected {
		verb, name, _ := strings.Cut(k.Check, "/")
		s.Cases = append(s.Cases, junitCase{Class: "conform." + verb, Name: name + " is known to be bad", Time: seconds(0), Failure: &junitWhy{
			Message: "the check passes, although it is known to be bad", Type: "unexpected pass", Text: k.words() + "\n",
		}})
	}
	all := junitSuites{
		Name: "cni-conform", Tests: s.Tests, Failures: bad, Skipped: skipped, Time: s.Time, Suite: s,
	}
	raw, err := xml.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, xml.Header+string(raw)+"\n")
	return err
}

func junitOf(r Result) junitCase {
	verb, name, _ := strings.Cut(r.Check, "/")
	c := junitCase{Class: "conform." + verb, Name: name, Time: seconds(r.Took)}
	seen := strings.Join(r.Seen, "\n")
	switch {
	case r.Known != nil:
		c.Skipped = &junitWhy{Message: "known: " + r.Known.words(), Type: "known", Text: seen + "\n"}
	case r.faulty():
		text := fmt.Sprintf("%s (%s; level %s)\n\n%s\n", r.Says, r.Spec, r.Level, seen)
		if r.Repeat != "" {
			text += "\nrepeat: " + r.Repeat + "\n"
		}
		first, _, _ := strings.Cut(seen, "\n")
		c.Failure = &junitWhy{Message: first, Type: string(r.Outcome), Text: text}
	case r.Outcome == Unsupported:
		c.Skipped = &junitWhy{Message: seen}
		if r.Needed != "" {
			c.Skipped.Type = "not judged"
		}
	}
	if len(r.Notes) > 0 {
		c.Out = &junitText{strings.Join(r.Notes, "\n")}
	}
	return c
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
