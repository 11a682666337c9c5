// Command conform runs `berth conform` on Berth, on the reference plugins, on Multus and on flannel's plugin, and
// writes docs/CONFORMANCE.md: what is judged, checks by lists, and each finding explained, with a recipe that shows the finding by hand. It
// fails if Berth has a bad result, if a bad result has no explanation, or if a finding has no bad result.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
)

func main() {
	in := folders{}
	flag.StringVar(&in.bin, "bin", "bin", "folder of berth, berthd, berth-cni and berth-runner")
	flag.StringVar(&in.peers, "peers", "bin/peers", "folder of the reference plugins")
	flag.StringVar(&in.lists, "lists", "test/conform", "folder of the lists and hooks")
	flag.StringVar(&in.reports, "reports", "bin/conform", "folder in which the reports stay")
	out := flag.String("out", "", "the page to write; empty: standard output")
	only := flag.String("only", "", "judge only these lists (names, with commas between), or none; the page has the reports that stayed of the others")
	atOnce := flag.Int("at-once", runtime.NumCPU()+1, "how many lists are judged at once: half of the time a judge waits")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := publish(ctx, in, names(*only), *atOnce, *out); err != nil {
		fmt.Fprintln(os.Stderr, "conform:", err)
		os.Exit(1)
	}
}

// names splits -only; "" is nil, for all, and "none" is empty.
func names(only string) []string {
	switch only {
	case "":
		return nil
	case "none":
		return []string{}
	}
	return strings.Split(only, ",")
}

// publish judges the subjects and writes the page.
func publish(ctx context.Context, in folders, only []string, atOnce int, out string) error {
	judged, err := judgeAll(ctx, in, only, atOnce)
	if err != nil {
		return err
	}
	if len(judged) == 0 {
		return fmt.Errorf("%s has no report", in.reports)
	}
	versions, err := in.versions()
	if err != nil {
		return err
	}
	found := explain(judged)
	var text bytes.Buffer
	if err := page(&text, versions, judged, found); err != nil {
		return err
	}
	if out == "" {
		fmt.Print(text.String())
	} else if err := os.WriteFile(out, text.Bytes(), 0o644); err != nil {
		return err
	}
	var errs []error
	for _, u := range found.unexplained {
		errs = append(errs, fmt.Errorf("no finding (findings.go) explains %s", u))
	}
	for _, name := range left(judged) {
		errs = append(errs, fmt.Errorf("there is no report of %s: -only has to name it", name))
	}
	for _, name := range found.unseen {
		errs = append(errs, fmt.Errorf("no list shows the finding %s (findings.go)", name))
	}
	for _, j := range judged {
		for _, check := range ofBerthsOwn(j) {
			errs = append(errs, fmt.Errorf("%s: Berth does not conform: %s", j.name, check))
		}
	}
	return errors.Join(errs...)
}

// ofBerthsOwn returns the checks that are bad because of Berth: all that are bad with a list of Berth's, and of others those whose results name its plugin.
func ofBerthsOwn(j judgement) (checks []string) {
	for _, r := range j.Results {
		if bad(r.Outcome) && (j.ours || strings.Contains(strings.Join(r.Seen, "\n"), "berth-cni ")) {
			checks = append(checks, r.Check)
		}
	}
	return checks
}
