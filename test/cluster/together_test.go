package cluster

import (
	"slices"
	"sync"
	"testing"
)

// together runs functions side by side, and returns when all have returned. If one of them has ended or skipped the test,
// together does so, too.
func together(t testing.TB, all ...func()) {
	t.Helper()
	var running sync.WaitGroup
	returned := make([]bool, len(all))
	for i, f := range all {
		running.Go(func() { f(); returned[i] = true })
	}
	running.Wait()
	switch {
	case !slices.Contains(returned, false):
	case t.Skipped():
		t.SkipNow()
	default:
		t.FailNow()
	}
}

// each runs a function for all nodes side by side.
func (c *cluster) each(f func(n *node)) {
	c.t.Helper()
	var all []func()
	for _, n := range c.nodes {
		all = append(all, func() { f(n) })
	}
	together(c.t, all...)
}
