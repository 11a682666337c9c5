package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/berth-net/berth/internal/notice"
)

// Reporter is the reportingController of the agent's Events.
const Reporter = "berth.dev/agent"

const (
	longestNote     = 1024 // bytes of an Event's note, and
	longestInstance = 128  // of its reportingInstance
)

var _ notice.API = (*Client)(nil)

// eventsClient returns a client for Events. It has a limit of its own for how many requests it sends a second, so that no ADD that
// asks for its pod waits for Events.
func eventsClient(c *rest.Config) (*rest.RESTClient, error) {
	own := rest.CopyConfig(c)
	own.GroupVersion, own.APIPath = &eventsv1.SchemeGroupVersion, "/apis"
	own.ContentType, own.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	return rest.RESTClientFor(own)
}

// addEvents tells a scheme of Events.
func addEvents(s *runtime.Scheme) {
	s.AddKnownTypes(eventsv1.SchemeGroupVersion, &eventsv1.Event{})
	metav1.AddToGroupVersion(s, eventsv1.SchemeGroupVersion)
}

// CreateEvent implements notice.API.
//
//	kubectl create -f EVENT
func (c *Client) CreateEvent(ctx context.Context, e notice.Event) error {
	o := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespaceOf(e), Name: e.Name},
		EventTime:  metav1.NewMicroTime(e.First), Series: seriesOf(e),
		ReportingController: Reporter, ReportingInstance: c.node[:min(len(c.node), longestInstance)],
		Action: e.Action, Reason: e.Reason, Note: strings.ToValidUTF8(e.Text[:min(len(e.Text), longestNote)], ""), Type: corev1.EventTypeWarning,
		Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: e.About.Kind, Namespace: e.About.Namespace, Name: e.About.Name, UID: types.UID(e.About.UID)},
	}
	if e.Normal {
		o.Type = corev1.EventTypeNormal
	}
	err := c.events.Post().Resource("events").Namespace(o.Namespace).Body(o).MaxRetries(0).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		return nil // an answer was lost
	}
	return refused(err)
}

// CountEvent implements notice.API.
func (c *Client) CountEvent(ctx context.Context, e notice.Event) error {
	body, err := json.Marshal(map[string]any{"series": seriesOf(e)})
	if err != nil {
		return fmt.Errorf("counting an Event: %w", err)
	}
	err = c.events.Patch(types.MergePatchType).Resource("events").Namespace(namespaceOf(e)).Name(e.Name).Body(body).MaxRetries(0).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return notice.ErrGone
	}
	return refused(err)
}

// namespaceOf returns the namespace that an Event has to be in: for objects that are in none, the one in which kubectl looks.
func namespaceOf(e notice.Event) string { return cmp.Or(e.About.Namespace, metav1.NamespaceDefault) }

// seriesOf says how often something was so; nil: once.
func seriesOf(e notice.Event) *eventsv1.EventSeries {
	if e.Count < 2 {
		return nil
	}
	return &eventsv1.EventSeries{Count: int32(e.Count), LastObservedTime: metav1.NewMicroTime(e.Last)}
}

// refused wraps an error that would be the same another time: what is wrong is the Event, or the agent's rights, or the Event's
// namespace is going or gone.
func refused(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: %w", notice.ErrOver, err)
	}
	switch code := int(status.Status().Code); {
	case code == http.StatusTooManyRequests, code == http.StatusUnauthorized, code == http.StatusRequestTimeout, code < 400, code >= 500:
		return err
	}
	return fmt.Errorf("%w: %w", notice.ErrRefused, err)
}
