package delegate

import (
	"context"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
)

// StatusTime is how long the plugins of one network may take for STATUS, all of them together.
const StatusTime = 2 * time.Second

// Status executes STATUS of the plugins of a list in their order, and returns the first error (CNI 1.1, section 4, STATUS). Plugins that do
// not know the verb, and lists whose version has none, are ready. It returns when ctx ends, also if the runner does not answer (Finder).
func (d *Delegates) Status(ctx context.Context, s *Spec) error {
	if !s.since("1.1.0") {
		return nil
	}
	all, err := s.plugins()
	if err != nil {
		return err
	}
	lost := d.find(ctx, s, all)
	ctx, cancel := within(ctx, d.StatusTime)
	defer cancel()
	for i, p := range all {
		if lost[i] != nil {
			return lost[i]
		}
		in, err := s.stdin(p, "STATUS")
		if err == nil {
			err = invoke.ExecPluginWithoutResult(ctx, p.path, in, &invoke.Args{Command: "STATUS", Path: s.path()}, d.Exec)
		}
		if err != nil && !ignorant(err) {
			return fmt.Errorf("plugin %s: %w", p.name, err)
		}
	}
	return nil
}
