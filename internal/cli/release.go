package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
)

// waitFor is how long --wait waits. The agent keeps its promise whether or not anybody
// waits.
const waitFor = 2 * time.Minute

type releaseFlags struct {
	containers, pods []string
	wait             bool
}

// releaseView says how far an attachment's release came.
type releaseView struct {
	ID        string   `json:"id"`
	Subject   string   `json:"subject"` // its pod or container
	Addresses []string `json:"addresses"`
	Gone      bool     `json:"gone"` // nothing of it is left
	Owed      int      `json:"owed"` // holds whose release has failed so far
}

func (a *app) releaseCommand() *cobra.Command {
	var f releaseFlags
	c := &cobra.Command{
		Use:   "release [ID|POD|CONTAINER...]",
		Short: "Take pods off the network, as a runtime's DEL does",
		Long: `Take pods off the network, as a runtime's DEL does, without confirmation. When
the command returns, the release is promised: the pods are cut off, and the
agent gives back what they held, whatever happens. With --wait it returns when
all is gone; the exit code is 1 if that takes longer than 2 minutes.`,
		Example: `  berth release default/web
  berth release --container 4f1c9a7d2b60      # all attachments of a container
  berth release --wait h4kq2mzt7c x3d5abqrs2`,
		ValidArgsFunction: a.completeAttachments,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args)+len(f.containers)+len(f.pods) == 0 {
				return errors.New("nothing to release: give an ID, pod or container")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return a.release(c.Context(), args, f) },
	}
	fl := c.Flags()
	fl.StringArrayVar(&f.containers, "container", nil, "all attachments of the container with this id, or the beginning of one; repeatable")
	fl.StringArrayVar(&f.pods, "pod", nil, "all attachments of this pod, NAMESPACE/NAME; repeatable")
	fl.BoolVar(&f.wait, "wait", false, "return when all is gone")
	return c
}

func (a *app) release(ctx context.Context, args []string, f releaseFlags) error {
	list, err := a.list(ctx, api.Filter{})
	if err != nil {
		return err
	}
	chosen, err := a.chooseForRelease(list, args, f)
	if err != nil {
		return err
	}
	err = a.ask(ctx, func(ctx context.Context, c *client.Client) error { return promise(ctx, c, chosen) })
	if err != nil {
		return err
	}
	if f.wait {
		if err := a.waitReleased(ctx, chosen); err != nil {
			return err
		}
	}
	var views []releaseView
	err = a.ask(ctx, func(ctx context.Context, c *client.Client) (err error) {
		views, err = released(ctx, c, chosen)
		return err
	})
	if err != nil {
		return err
	}
	if err := a.print(views, func() { a.showReleased(views, false) }); err != nil {
		return err
	}
	if f.wait && slices.ContainsFunc(views, func(v releaseView) bool { return !v.Gone }) {
		return exit(1)
	}
	return nil
}

// chooseForRelease returns the attachments that arguments and flags name. chooseForRelease fails if an
// argument or a flag names nothing, so that nothing is released then.
func (a *app) chooseForRelease(list []api.Attachment, args []string, f releaseFlags) (chosen []api.Attachment, err error) {
	if chosen, err = a.choose(list, args); err != nil {
		return nil, err
	}
	for _, by := range []struct {
		flag   string
		values []string
		find   func([]api.Attachment, string) ([]api.Attachment, error)
	}{
		{"--container", f.containers, ofContainer},
		{"--pod", f.pods, ofPod},
	} {
		for _, value := range by.values {
			found, err := by.find(list, value)
			if err != nil {
				return nil, err
			}
			if len(found) == 0 || value == "" {
				return nil, fmt.Errorf("%s %s has no attachment; see `berth attachments`", by.flag, value)
			}
			chosen = append(chosen, found...)
		}
	}
	return unique(chosen), nil
}

// ofPod returns the attachments of the pod with this name, NAMESPACE/NAME.
func ofPod(list []api.Attachment, name string) ([]api.Attachment, error) {
	return slices.DeleteFunc(slices.Clone(list), func(at api.Attachment) bool { return podName(at.Pod) != name }), nil
}

// promise has the agent promise every release, and does not wait for any.
func promise(ctx context.Context, c *client.Client, chosen []api.Attachment) error {
	for _, at := range chosen {
		if _, err := c.DeleteOne(ctx, at.ID, false); err != nil && !client.IsUnknown(err) {
			return fmt.Errorf("releasing %s: %w", at.ID, err)
		}
	}
	return nil
}

// waitReleased waits until all attachments are gone, for waitFor at most.
func (a *app) waitReleased(ctx context.Context, chosen []api.Attachment) error {
	late, cancel := context.WithTimeout(ctx, waitFor)
	defer cancel()
	c := client.New(a.dir().Socket())
	defer c.Close()
	for _, at := range chosen {
		_, err := c.DeleteOne(late, at.ID, true)
		if late.Err() != nil && ctx.Err() == nil {
			return nil
		}
		if err != nil && !client.IsUnknown(err) {
			return fmt.Errorf("waiting for the release of %s: %w", at.ID, err)
		}
	}
	return nil
}

// released asks the agent how far each release came.
func released(ctx context.Context, c *client.Client, chosen []api.Attachment) ([]releaseView, error) {
	views := make([]releaseView, len(chosen))
	for i, at := range chosen {
		now, err := c.Get(ctx, at.ID)
		gone := client.IsUnknown(err)
		if err != nil && !gone {
			return nil, fmt.Errorf("looking at %s, whose release is promised: %w", at.ID, err)
		}
		if at.ContainerID == "" { // only its ID is known: see chosen
			now.ID = at.ID
			at = now
		}
		views[i] = releaseView{ID: at.ID, Subject: subject(at), Addresses: at.Addresses, Gone: gone, Owed: len(now.Owed)}
	}
	return views, nil
}

// showReleased prints one row for each attachment; with dryRun, it says what would be
// released.
func (a *app) showReleased(views []releaseView, dryRun bool) {
	t := newTable("ID", "RESULT", "OF", "ADDRESSES")
	for _, v := range views {
		result := cell{"releasing", yellow}
		switch {
		case dryRun:
			result = cell{text: "would be released"}
		case v.Gone:
			result = cell{"released", green}
		case v.Owed > 0:
			result = cell{fmt.Sprintf("%s owed; agent retries", count(v.Owed, "release")), red}
		}
		t.row(v.ID, result, v.Subject, strings.Join(v.Addresses, ","))
	}
	a.table(t)
}
