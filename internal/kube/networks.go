package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nad"
)

var (
	// ErrAway says that the API server has not said in time what a pod's networks need.
	ErrAway = errors.New("the API server has not answered")
	// ErrPodGone says that the API server has no such pod: none of that name, or one with another UID.
	ErrPodGone = errors.New("the API server has no such pod")
)

// asking is how long an ADD waits for the API server to say which networks a pod asks for, or what a network is, if the agent has
// not heard of it yet. It is longer than package lease waits: a pod gets some pool's address, but no pod goes without its networks.
const asking = 2 * time.Second

// Asks returns what a pod asks for by its annotations nad.KeyNetworks and nad.KeyDefault. If the agent has not heard of this very pod
// yet, it asks the API server. An empty pod.UID stands for any. Errors: ErrPodGone, ErrAway, or a refusal by the API server.
func (w *Watcher) Asks(ctx context.Context, pod *api.Pod) (nets, def string, err error) {
	is, err := w.wishOf(ctx, pod)
	if err != nil {
		return "", "", fmt.Errorf("reading which networks pod %s/%s asks for: %w", pod.Namespace, pod.Name, err)
	}
	return is.nets, is.def, nil
}

// wishOf returns what the agent has heard of a pod, or else what the API server says.
func (w *Watcher) wishOf(ctx context.Context, pod *api.Pod) (wish, error) {
	if is, known := w.wishes.of(pod); known {
		return is, nil
	}
	return w.askWish(ctx, pod)
}

// askWish asks the API server for a pod.
//
//	kubectl get pod NAME
func (w *Watcher) askWish(ctx context.Context, pod *api.Pod) (wish, error) {
	ctx, cancel := context.WithTimeout(ctx, w.asking)
	defer cancel()
	var o metav1.PartialObjectMetadata
	err := w.onePod.Get().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SetHeader("Accept", acceptOne).Do(ctx).Into(&o)
	switch {
	case apierrors.IsNotFound(err):
		return wish{}, fmt.Errorf("%w: %w", ErrPodGone, err)
	case err != nil:
		return wish{}, away(err)
	}
	is := wishFrom(&o.ObjectMeta)
	if pod.UID != "" && is.pod.UID != pod.UID {
		return wish{}, fmt.Errorf("%w: the UID of its pod of that name is %s; expected %s", ErrPodGone, is.pod.UID, pod.UID)
	}
	w.wishes.learn(is)
	return is, nil
}

// away wraps an error if it is no answer to what was asked: none came, or the API server cannot say it now.
func away(err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		switch code := int(status.Status().Code); {
		case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code >= 500:
		default:
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrAway, err)
}

// WriteStatus sets the annotation nad.KeyStatus of a pod; an empty text takes it away. The request goes to the subresource status, by
// which a client can change a pod's annotations and nothing of its spec. It names the pod's UID, so that no other pod gets the status.
// Errors: ErrPodGone, ErrAway, or a refusal by the API server.
//
//	kubectl annotate --overwrite pod NAME KEY=TEXT
func (w *Watcher) WriteStatus(ctx context.Context, pod *api.Pod, text string) error {
	fail := func(err error) error {
		return fmt.Errorf("writing the status of the networks of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	is, err := w.wishOf(ctx, pod)
	if err != nil {
		return fail(err)
	}
	err = w.annotatePod(ctx, is, text)
	if apierrors.IsInvalid(err) || apierrors.IsConflict(err) { // Invalid: the API server's way to say that the UID is another one
		now, again := w.askWish(ctx, pod)
		switch {
		case again != nil:
			err = again
		case now.object != is.object: // a static pod's object was made anew, and the agent has not heard of it
			err = w.annotatePod(ctx, now, text)
		}
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// annotatePod merges a patch (RFC 7386) into a pod's metadata, by the pod's subresource status.
func (w *Watcher) annotatePod(ctx context.Context, is wish, text string) error {
	var value *string // nil takes the annotation away
	if text != "" {
		value = &text
	}
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": is.object, "annotations": map[string]*string{nad.KeyStatus: value}}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, w.asking)
	defer cancel()
	patch := w.onePod.Patch(types.MergePatchType).Resource("pods").Namespace(is.pod.Namespace).Name(is.pod.Name).SubResource("status")
	err = patch.SetHeader("Accept", acceptOne).Body(raw).MaxRetries(0).Do(ctx).Error()
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: %w", ErrPodGone, err)
	case err != nil:
		return away(err)
	}
	return nil
}
