// Command crash kills Berth's real programs, berthd, berth-cni and berth-runner, at every system call by
// which one of their verbs changes the world. It starts them again, does what a runtime
// does, and looks for residue with Berth's own audit and with an oracle that knows nothing
// of Berth (internal/nettest). Then it kills the programs at random moments while pods come
// and go.
//
//	make crash                              # all, as CI runs it
//	go run ./test/crash -verbs 'berthd DEL' # the points of one verb; -v says each
//	go run ./test/crash -only loop -kills 100000 -seed 7
//
// If nothing was left behind, the last line is "residue: 0". Otherwise the exit code is 1.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/berth-net/berth/conform/oracle"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/crash/killer"
)

// options are the command line.
type options struct {
	bin     string
	verbs   []string
	only    string // points, loop; "": both
	kills   int
	seed    uint64
	verbose bool
}

func main() {
	killer.Board()
	o := flags()
	nettest.Enter()
	if err := nettest.Inside(); err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		os.Exit(1)
	}
	r := &report{verbose: o.verbose}
	err := runAll(o, r)
	r.summary(err)
	if err != nil || len(r.residues) > 0 {
		os.Exit(1)
	}
}

func flags() options {
	var o options
	var verbs string
	flag.StringVar(&o.bin, "bin", "bin", "folder of berthd, berth-cni, berth-runner and berth, with the reference plugins in its folder peers")
	flag.StringVar(&verbs, "verbs", "", "comma-separated parts of scenarios' names (default all)")
	flag.StringVar(&o.only, "only", "", "points, or loop (default both)")
	flag.IntVar(&o.kills, "kills", 2000, "kills of the random loop")
	flag.Uint64Var(&o.seed, "seed", 0, "of the random loop (default by chance; it is printed)")
	flag.BoolVar(&o.verbose, "v", false, "say each point")
	flag.Parse()
	o.verbs = strings.FieldsFunc(verbs, func(r rune) bool { return r == ',' })
	o.seed = cmp.Or(o.seed, rand.Uint64()>>32+1)
	var err error
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		os.Exit(2)
	}
	return o
}

// runAll runs what the options say. Residue goes into the report; only other failures are
// an error and end the run early.
func runAll(o options, r *report) error {
	before, err := everything()
	if err != nil {
		return err
	}
	if o.only != "loop" {
		if err := points(o, r); err != nil {
			return err
		}
	}
	if o.only != "points" && len(o.verbs) == 0 {
		if err := loop(o, r); err != nil {
			return err
		}
	}
	after, err := everything()
	if err != nil {
		return err
	}
	if diff := before.Diff(after); diff != "" {
		r.residue("the whole run", left("the oracle finds\n%s", diff))
	}
	return nil
}

// everything returns the state of the namespaces that the run has for itself.
func everything() (nettest.State, error) {
	s, err := nettest.Look(nil)
	if err != nil {
		return s, err
	}
	files, err := oracle.Files("/run")
	return s.And(files).Without("conntrack"), err
}

// points runs the scenarios, two at once.
func points(o options, r *report) error {
	all := chosen(o.verbs)
	if len(all) == 0 {
		return fmt.Errorf("no scenario has any of %q in its name", o.verbs)
	}
	next := make(chan scenario)
	go func() {
		defer close(next)
		for _, s := range all {
			next <- s
		}
	}()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for range 2 {
		wg.Go(func() {
			for s := range next {
				begun := time.Now()
				t, err := s.run(o.bin, r.say)
				var found *residue
				if errors.As(err, &found) {
					r.residue(s.name, err)
				} else if err != nil {
					r.print("FAILED: %v", err)
					mu.Lock()
					errs = append(errs, fmt.Errorf("%s could not be judged", s.name))
					mu.Unlock()
				}
				r.scenario(s, t, time.Since(begun))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
