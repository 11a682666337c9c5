package cli

import (
	"context"
	"slices"
	"time"

	"github.com/berth-net/berth/api/client"
)

const (
	// askAgain is how long install --keep waits until it asks an agent again that is not ready.
	askAgain = time.Second
	// lookAgain is how often install --keep looks whether all is in place.
	lookAgain = 30 * time.Second
)

// keepInstalled installs as soon as the agent is ready for pods, so that no runtime takes the node for ready before, and puts
// back what somebody takes away, whether or not the agent is ready by then. When ctx ends, all stays in place: a DEL needs the
// plugin, and no agent.
func (a *app) keepInstalled(ctx context.Context, f installFlags) error {
	installed, said := false, ""
	say := func(err error) {
		if text := err.Error(); text != said && ctx.Err() == nil {
			said = text
			a.none("berth: %s; trying again", text)
		}
	}
	for {
		wait := askAgain
		err := error(nil)
		if !installed {
			err = a.ask(ctx, func(ctx context.Context, c *client.Client) error { _, err := c.Status(ctx, ""); return err })
		}
		if err == nil {
			err = a.alone(ctx, func() error {
				v, err := a.install(ctx, f)
				if err == nil && (!installed || changes(v)) {
					err = a.print(v, func() { a.showInstall(v, false) })
				}
				return err
			})
		}
		if err != nil {
			say(err)
		} else {
			installed, said, wait = true, "", lookAgain
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// changes reports whether install has changed something.
func changes(v installView) bool {
	return slices.ContainsFunc(v.Files, func(f fileView) bool { return f.Action == "installed" || f.Action == "replaced" })
}
