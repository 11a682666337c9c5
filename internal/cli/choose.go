package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
)

// leastPrefix is how many characters the beginning of an id must have to stand for the id.
const leastPrefix = 4

// matching returns the attachments that an argument names by ID, pod (NAMESPACE/NAME or
// NAME), container id, address or host veth. If the argument names none in full, it may be
// the beginning of an ID or a container id, of at least leastPrefix characters.
func matching(list []api.Attachment, arg string) []api.Attachment {
	if arg == "" { // an unset variable of a script
		return nil
	}
	match := func(is func(api.Attachment) bool) []api.Attachment {
		return slices.DeleteFunc(slices.Clone(list), func(at api.Attachment) bool { return !is(at) })
	}
	exact := match(func(at api.Attachment) bool {
		return arg == at.ID || arg == at.ContainerID || arg == at.HostVeth || sameAddress(arg, at.Addresses) ||
			at.Pod != nil && (arg == at.Pod.Name || arg == podName(at.Pod))
	})
	if len(exact) > 0 || len(arg) < leastPrefix {
		return exact
	}
	return match(func(at api.Attachment) bool {
		return strings.HasPrefix(at.ID, arg) || strings.HasPrefix(at.ContainerID, arg)
	})
}

// ofContainer returns the attachments of the container that has an id, or, if none has it, of the one
// whose id begins with it. A beginning of several containers' ids is an error.
func ofContainer(list []api.Attachment, id string) ([]api.Attachment, error) {
	exact, begins := []api.Attachment{}, []api.Attachment{} // -o json shows an empty list
	for _, at := range list {
		switch {
		case at.ContainerID == id:
			exact = append(exact, at)
		case len(id) >= leastPrefix && strings.HasPrefix(at.ContainerID, id):
			begins = append(begins, at)
		}
	}
	if len(exact) > 0 {
		return exact, nil
	}
	var ids []string
	for _, at := range begins {
		if !slices.Contains(ids, at.ContainerID) {
			ids = append(ids, at.ContainerID)
		}
	}
	if len(ids) > 1 {
		return nil, fmt.Errorf("--container %s is the beginning of %d containers' ids, %s: give more of one", id, len(ids), strings.Join(ids, ", "))
	}
	return begins, nil
}

// subject returns to whom an attachment belongs: its pod or container. An argument of
// release or check may name one subject, and then means all of its attachments.
func subject(at api.Attachment) string {
	if pod := podName(at.Pod); pod != "" {
		return "pod " + pod
	}
	if at.ContainerID == "" {
		return "an attachment that was still being made"
	}
	return "container " + at.ContainerID
}

// choose returns the attachments that arguments name. An argument that names no attachment,
// or attachments of several pods or containers, is an error.
func (a *app) choose(list []api.Attachment, args []string) (chosen []api.Attachment, _ error) {
	for _, arg := range args {
		found := matching(list, arg)
		if len(found) == 0 {
			return nil, unknown(arg)
		}
		for _, at := range found {
			if subject(at) != subject(found[0]) {
				return nil, a.ambiguous(arg, found)
			}
		}
		chosen = append(chosen, found...)
	}
	return chosen, nil
}

// unique returns the list without repetitions, in its order.
func unique(list []api.Attachment) []api.Attachment {
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(list), func(at api.Attachment) bool {
		was := seen[at.ID]
		seen[at.ID] = true
		return was
	})
}

func unknown(arg string) error {
	return fmt.Errorf("%.200q is not the id, pod, container or address of an attachment; see `berth attachments`", arg)
}

// ambiguous prints the candidates on stderr, since they are no answer.
func (a *app) ambiguous(arg string, found []api.Attachment) error {
	to := *a
	to.stdout, to.colour = a.stderr, false
	to.showList(found)
	return fmt.Errorf("%.200q names %d attachments: choose one by its ID", arg, len(found))
}

// completeAttachments completes arguments that name attachments.
func (a *app) completeAttachments(c *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if a.prepare(c, nil) != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	list, err := a.list(context.Background(), api.Filter{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var words []cobra.Completion
	for _, at := range list {
		words = append(words, cobra.CompletionWithDesc(at.ID, subject(at)))
		if pod := podName(at.Pod); pod != "" {
			words = append(words, cobra.CompletionWithDesc(pod, strings.Join(at.Addresses, " ")))
		}
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}
