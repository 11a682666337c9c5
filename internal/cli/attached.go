package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/ledger"
)

// attached returns the pods that the agent has or, if the agent is away, that its ledger has. attached
// leaves out pods whose release is promised or whose deletion is queued: their runtime needs the plugin
// no more, unless DEL told the runtime to repeat it. Of a ledger, attached also leaves out pods that have certainly
// ended: if the runtime's network is another CNI's by now, no DEL tells Berth of their end. A lost ledger cannot tell which pods are attached.
// It is certain that no pod is attached only if no agent has ever run.
func (a *app) attached(ctx context.Context) (pods []string, err error) {
	list, err := a.list(ctx, api.Filter{})
	if err == nil {
		for _, at := range list {
			if at.Releasing == nil {
				pods = append(pods, orContainer(at.Pod, at.ContainerID))
			}
		}
		return pods, nil
	}
	s, err := ledger.Read(a.dir().Ledger(), kinds)
	if errors.Is(err, os.ErrNotExist) {
		for _, trace := range []string{a.dir().Instance(), a.dir().Epoch()} {
			if _, there := os.Lstat(trace); !errors.Is(there, os.ErrNotExist) {
				return nil, fmt.Errorf("%w, but an agent has run here: %s exists", err, trace)
			}
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	queue, _ := deletions.Look(a.dir()) // a pod whose deletion cannot be read counts as attached
	return needing(s.Owners, queue.Pending), nil
}

// needing returns the pods of a ledger whose runtime still needs the plugin. A pod does not need the
// plugin if its DEL is in the queue and nobody has to repeat that DEL, or if the pod has ended.
func needing(owners []hold.Owner, queue []deletions.Entry) (pods []string) {
	ended := slices.DeleteFunc(slices.Clone(queue), func(q deletions.Entry) bool { return q.Record.Again })
	for _, o := range owners {
		if r, ok, err := attachment.Decode(o); ok && err == nil && wanted(o, r, ended) {
			pods = append(pods, orContainer(r.Pod, r.ContainerID))
		}
	}
	return pods
}

// wanted reports whether an attachment's release is not promised, its pod has not certainly ended, and no deletion for it
// is in the queue.
func wanted(o hold.Owner, r attachment.Record, queue []deletions.Entry) bool {
	if !o.Wanted() {
		return false
	}
	boot := bootID()
	if ended(r, boot) {
		return false
	}
	for _, q := range queue {
		if q.Record.Key() == r.Key && r.BeganBeforeDeletion(q.Record.Boot, q.Record.Started, boot) {
			return false
		}
	}
	return true
}

// ended reports whether an attachment's pod has certainly ended: it is of an earlier boot, or its network namespace is gone. A regular
// file at the namespace's path tells nothing: a container sees it in place of a mount that it has not got.
func ended(r attachment.Record, boot string) bool {
	if was, _, known := strings.Cut(r.Epoch, "/"); known && boot != "" && was != boot {
		return true
	}
	if r.Netns.Path == "" {
		return false
	}
	at, err := r.Netns.Open()
	if err == nil {
		at.Close()
	}
	return errors.Is(err, ns.ErrGone) && !errors.Is(err, ns.ErrNotNetns) && ns.Visible(r.Netns.Path) == nil
}

// orContainer names a pod, or else its container.
func orContainer(pod *api.Pod, container string) string {
	if name := podName(pod); name != "" {
		return name
	}
	return "container " + shortID(container)
}

// mostPods is how many pods a line names.
const mostPods = 20

// howMany counts pods that are attached, and names them.
func howMany(pods []string) string {
	pods = slices.Sorted(slices.Values(pods))
	names := strings.Join(pods[:min(len(pods), mostPods)], ", ")
	if more := len(pods) - mostPods; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("%s attached (%s)", count(len(pods), "pod"), names)
}
