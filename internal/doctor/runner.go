package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/root"
)

// lookRunner asks berth-runner for an answer, where pods may have networks of other plugins.
func lookRunner(ctx context.Context, n *Node) Finding {
	switch c := n.config(); {
	case c.Err != nil:
		return unknown(c.Err)
	case c.Config.Kubernetes == nil || !c.Config.Kubernetes.Networks:
		return ok("not needed: pods may not ask for further networks (kubernetes.networks)")
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return judgeRunner(n.Root, askRunner(ctx, n.Root.RunnerSocket()))
}

// askRunner returns nil if somebody answers on the socket of berth-runner. It asks for a path that
// berth-runner does not have: so the answer waits for no plugin and no file system.
func askRunner(ctx context.Context, socket string) error {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		path, done, err := client.Reachable(socket)
		if err != nil {
			return nil, err
		}
		defer done()
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://berth-runner/", nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Transport{DialContext: dial, DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func judgeRunner(dir root.Dir, err error) Finding {
	socket, start, again := dir.RunnerSocket(), "systemctl enable --now berth-runner", "systemctl restart berth-runner"
	if dir != root.Default {
		start = "berth-runner --root " + string(dir)
		again = start
	}
	switch {
	case err == nil:
		return ok("berth-runner answers at %s", socket)
	case errors.Is(err, fs.ErrPermission):
		return unknown(err)
	case errors.Is(err, context.DeadlineExceeded):
		return Finding{Bad, fmt.Sprintf("berth-runner does not answer at %s within %s", socket, answerWithin),
			"read its log (journalctl -u berth-runner), and start it again: " + again}
	}
	return Finding{Bad, fmt.Sprintf("pods may ask for further networks (kubernetes.networks), and no berth-runner answers at %s: %v", socket, err),
		start + "; in a cluster, by Berth's chart: networks.enabled"}
}
