package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/berth-net/berth/internal/daemon/server"
)

// presence is the time between two looks of keepReachable: a daemon whose socket was
// removed is out of reach for no longer than that.
const presence = time.Second

// keepReachable makes the socket, the marker beside it and the lock of the instance again
// if somebody removes them, until ctx ends. If another daemon has the lock by then, that daemon may
// give out the same names: keepReachable sends the error to usurped, and this daemon ends.
func (d *Daemon) keepReachable(ctx context.Context, srv *server.Server, usurped chan<- error) {
	look := time.NewTicker(presence)
	defer look.Stop()
	var unheard string // why nobody can reach the daemon, as the log says already
	if d.deaf != nil {
		unheard = d.deaf.Error()
	}
	var unlocked bool // LockAgain failed
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		again, err := srv.Relisten()
		if again {
			if d.deaf != nil {
				d.Log.Info("the agent has made its socket")
			} else {
				d.Log.Warn("somebody removed the socket, and the agent made it again")
			}
			d.deaf = nil
			d.unmarked = true // the marker may have gone with the folder
		}
		if d.unmarked {
			err := d.mark()
			if err != nil && again {
				d.Log.Warn("could not write the marker into the run folder", "err", err)
			}
			d.unmarked = err != nil
		}
		bad := d.LockAgain()
		if errors.Is(bad, ErrTwice) {
			usurped <- bad
			return
		}
		if bad != nil && !unlocked {
			d.Log.Error("the agent cannot tell whether it still has the lock of its instance, or could not lock it again", "err", bad)
		}
		unlocked = bad != nil
		if was := unheard; err == nil {
			unheard = ""
		} else if unheard = err.Error(); unheard != was {
			d.Log.Error("could not make the socket again", "err", err)
		}
	}
}
