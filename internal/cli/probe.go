package cli

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/probe"
)

// probing is what the flags of `berth check --probe` say.
type probing struct {
	on     bool
	to     string
	wait   time.Duration
	target netip.AddrPort
}

// probed is what probing an attachment found.
type probed struct {
	ID    string       `json:"id"`
	Of    string       `json:"of"`
	Steps []probe.Step `json:"steps"`
}

func (p probed) failed() bool {
	return slices.ContainsFunc(p.Steps, func(s probe.Step) bool { return s.Verdict == probe.Fail })
}

func (w *probing) flags(c *cobra.Command) {
	c.Flags().BoolVar(&w.on, "probe", false, "send packets to the pods and from inside them")
	c.Flags().StringVar(&w.to, "to", "", "with --probe: where the way out leads, ADDRESS for an echo or ADDRESS:PORT for TCP (default: an echo to the default gateway)")
	c.Flags().DurationVar(&w.wait, "wait", 2*time.Second, "with --probe: how long to wait for each answer")
}

func (w *probing) valid() (err error) {
	switch {
	case !w.on && w.to != "":
		return fmt.Errorf("--to goes with --probe")
	case w.wait <= 0 || w.wait > time.Minute:
		return fmt.Errorf("--wait %s: expected more than nothing, and a minute at most", w.wait)
	case w.to == "":
		return nil
	}
	if w.target, err = parseTarget(w.to); err != nil {
		return fmt.Errorf("--to %.200q: expected an address, or an address and a port such as 192.0.2.53:53 or [2001:db8::53]:53", w.to)
	}
	return nil
}

// parseTarget reads an address, or an address and a port.
func parseTarget(text string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		var a netip.Addr
		a, err = netip.ParseAddr(text)
		at = netip.AddrPortFrom(a, 0)
	} else if at.Port() == 0 {
		err = fmt.Errorf("port 0")
	}
	if err == nil && at.Addr().Zone() != "" {
		err = fmt.Errorf("an address with a zone")
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), err
}

// probe probes the chosen attachments, one after the other. all has the attachments among which probe
// finds another pod of the node, to which the probed pod sends.
func (w *probing) probe(ctx context.Context, chosen, all []api.Attachment) (found []probed, err error) {
	for _, at := range chosen {
		if at.State != api.StateAttached {
			return found, fmt.Errorf("%s of %s is %s: nothing to probe", at.ID, subject(at), at.State)
		}
		o := probe.Options{Pod: podOf(at), To: w.target, Wait: w.wait}
		if i := slices.IndexFunc(all, func(o api.Attachment) bool { return o.State == api.StateAttached && o.Netns != at.Netns }); i >= 0 {
			peer := podOf(all[i])
			o.Peer = &peer
		}
		p := probed{ID: at.ID, Of: subject(at)}
		if p.Steps, err = probe.Run(ctx, o); err != nil {
			return found, fmt.Errorf("probing %s: %w", subject(at), err)
		}
		found = append(found, p)
	}
	return found, nil
}

// podOf returns what a probe has to know of an attachment's pod.
func podOf(at api.Attachment) probe.Pod {
	p := probe.Pod{Name: podName(at.Pod), Netns: at.Netns, Ifname: at.Ifname, MAC: at.MAC, Host: at.HostVeth}
	if p.Name == "" {
		p.Name = shortID(at.ContainerID)
	}
	for _, text := range at.Addresses {
		if addr, err := netip.ParseAddr(text); err == nil {
			p.Addresses = append(p.Addresses, addr)
		}
	}
	return p
}

var probeInks = map[probe.Verdict]ink{probe.OK: green, probe.Fail: red, probe.Unknown: yellow, probe.Skipped: yellow}

// showProbes prints a row for each step.
func (a *app) showProbes(all []probed) {
	for _, p := range all {
		a.say("\n%s (%s)\n", p.Of, p.ID)
		t := newTable("VERDICT", "STEP", "SENT", "CAME BACK")
		for _, s := range p.Steps {
			t.row(cell{string(s.Verdict), probeInks[s.Verdict]}, s.Name, s.Sent, strings.Join(append([]string{s.Got}, s.Why...), "; "))
		}
		a.table(t)
	}
}
