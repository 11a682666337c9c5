package kube

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/notice"
)

// The agent's Events are such as the API server takes, and what it refuses for ever is told from what it may take later.
func TestEvents(t *testing.T) {
	s := kubetest.Serve(t)
	c, err := Connect(config.Kubernetes{Node: "n1", Kubeconfig: s.Kubeconfig(t)}, "test")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	pod := notice.Object{Kind: "Pod", Namespace: "shop", Name: "web-0", UID: "u1"}
	full := notice.Event{
		Notice: notice.Notice{About: pod, Reason: "AddressesExhausted", Action: "Attach", Text: strings.Repeat("ä", 600)},
		Name:   "web-0.1", First: now, Last: now, Count: 1,
	}
	well := notice.Event{Notice: notice.Notice{About: notice.Node("n1"), Reason: "NodesRouted", Action: "Route", Text: "well", Normal: true}, Name: "n1.1", First: now, Last: now, Count: 3}
	for _, e := range []notice.Event{full, well, full} { // the last one again: its answer was lost
		if err := c.CreateEvent(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	full.Count = 7
	if err := c.CountEvent(t.Context(), full); err != nil {
		t.Error(err)
	}
	want := []string{"Pod shop/web-0 Warning AddressesExhausted: " + strings.Repeat("ä", 512) + " (x7)", "Node n1 Normal NodesRouted: well (x3)"}
	if have := s.Events(); !slices.Equal(have, want) {
		t.Errorf("the Events are %q, want %q", have, want)
	}
	o := s.Get("events", "shop/web-0.1")
	if r := o["regarding"].(kubetest.Object); r["uid"] != "u1" || o["reportingController"] != Reporter || o["reportingInstance"] != "n1" {
		t.Errorf("the Event is %v", o)
	}
	s.Delete("events", "shop/web-0.1")
	if err := c.CountEvent(t.Context(), full); !errors.Is(err, notice.ErrGone) {
		t.Errorf("counting an Event that is gone: %v", err)
	}
	full.Action = ""
	if err := c.CreateEvent(t.Context(), full); !errors.Is(err, notice.ErrRefused) {
		t.Errorf("an Event without an action: %v", err)
	}
	for status, refused := range map[int]bool{http.StatusForbidden: true, http.StatusTooManyRequests: false, http.StatusInternalServerError: false} {
		s.Break(status)
		if err := c.CreateEvent(t.Context(), well); err == nil || errors.Is(err, notice.ErrRefused) != refused {
			t.Errorf("status %d: %v", status, err)
		}
		if err := c.CountEvent(t.Context(), well); err == nil || errors.Is(err, notice.ErrRefused) != refused || errors.Is(err, notice.ErrGone) {
			t.Errorf("status %d: %v", status, err)
		}
	}
	s.Break(http.StatusNotFound) // as in a namespace that is gone
	if err := c.CreateEvent(t.Context(), well); !errors.Is(err, notice.ErrOver) {
		t.Errorf("the namespace is gone: %v", err)
	}
	going := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "e", errors.New("it is being terminated"))
	going.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	if err := refused(going); !errors.Is(err, notice.ErrOver) || errors.Is(err, notice.ErrRefused) {
		t.Errorf("the namespace is going: %v", err)
	}
	s.Close()
	if err := c.CreateEvent(t.Context(), well); err == nil || errors.Is(err, notice.ErrRefused) {
		t.Errorf("no API server: %v", err)
	}
}
