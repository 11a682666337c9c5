package podstatus_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/kinds/podstatus"
	"github.com/berth-net/berth/internal/nettest"
)

// server has the annotations of pods.
type server struct {
	mu   sync.Mutex
	all  map[string]string
	fail error
	text string
}

func (s *server) kind() hold.Kind {
	return podstatus.New(podstatus.Options{
		Text: func(first hold.ID) (string, error) { return s.text + string(first), nil },
		Write: func(_ context.Context, pod *api.Pod, text string) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.fail == nil {
				s.all[pod.Namespace+"/"+pod.Name] = text
			}
			return s.fail
		},
	}).Kind()
}

func TestKind(t *testing.T) {
	s := &server{all: map[string]string{}, text: "status of "}
	kindtest.Run(t, kindtest.Kind{
		Kind: s.kind(),
		Spec: func(_ testing.TB, owner hold.ID) hold.Spec {
			return &podstatus.Spec{First: owner, Namespace: "default", Name: string(owner), UID: "u"}
		},
		Example:     &podstatus.Spec{First: "abcdefghij", Namespace: "default", Name: "web-0", UID: "u1"},
		Undisguised: "the annotation is a word to others: Berth does not read it",
	})
}

// The annotation is written anew when the pod's networks are others, and by each run of the agent; what cannot be written is missing.
func TestWritten(t *testing.T) {
	s := &server{all: map[string]string{}, text: "one of "}
	k := s.kind()
	h := hold.Hold{Owner: "o", Spec: &podstatus.Spec{First: "f", Namespace: "default", Name: "web"}}
	is := func(want error) {
		t.Helper()
		if err := k.Verify(t.Context(), nil, []hold.Hold{h})[0]; !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	is(hold.ErrGone)
	s.fail = errors.New("the API server is away")
	if err := k.Acquire(t.Context(), h); err == nil || !strings.Contains(err.Error(), "the API server is away") {
		t.Errorf("an API server that is away: %v", err)
	}
	is(hold.ErrGone)
	s.fail = nil
	nettest.Must(t, k.Acquire(t.Context(), h))
	is(nil)
	s.text = "two of "
	is(hold.ErrChanged)
	nettest.Must(t, k.Acquire(t.Context(), h))
	is(nil)
	if got := slices.Collect(maps.Values(s.all)); !slices.Equal(got, []string{"two of f"}) {
		t.Errorf("the pods say %q", got)
	}
	k = s.kind() // the agent is started again
	is(hold.ErrGone)
}

// A text that is on its way is no difference, unless another one is to be written by now.
func TestWhileWriting(t *testing.T) {
	text, fail := "one", error(nil)
	begun, goOn := make(chan struct{}), make(chan struct{})
	k := podstatus.New(podstatus.Options{
		Text:  func(hold.ID) (string, error) { return text, nil },
		Write: func(context.Context, *api.Pod, string) error { begun <- struct{}{}; <-goOn; return fail },
	}).Kind()
	h := hold.Hold{Owner: "o", Spec: &podstatus.Spec{First: "f", Namespace: "default", Name: "web"}}
	is := func(when string, want error) {
		t.Helper()
		if err := k.Verify(t.Context(), nil, []hold.Hold{h})[0]; !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", when, err, want)
		}
	}
	write := func() (end func() error) {
		ended := make(chan error, 1)
		go func() { ended <- k.Acquire(t.Context(), h) }()
		<-begun
		return func() error { goOn <- struct{}{}; return <-ended }
	}
	end := write()
	is("while it is written first", nil)
	nettest.Must(t, end())
	text = "two"
	is("before it is written anew", hold.ErrChanged)
	end = write()
	is("while it is written anew", nil)
	text = "three"
	is("while a former text is written", hold.ErrChanged)
	nettest.Must(t, end())
	fail = errors.New("the API server is away")
	end = write()
	is("while it is written in vain", nil)
	if err := end(); !errors.Is(err, fail) {
		t.Errorf("writing it: %v", err)
	}
	is("after it was written in vain", hold.ErrChanged)
}

// While a pod's networks are being changed the annotation may be an older one, but not for whoever has changed them, and it has to be there.
func TestWhileChanging(t *testing.T) {
	s, changing := &server{all: map[string]string{}, text: "one of "}, true
	k := podstatus.New(podstatus.Options{
		Text: func(first hold.ID) (string, error) { return s.text + string(first), nil }, Write: func(context.Context, *api.Pod, string) error { return nil },
		Changing: func(first hold.ID) bool { return changing && first == "f" },
	}).Kind()
	h := hold.Hold{Owner: "o", Spec: &podstatus.Spec{First: "f", Namespace: "default", Name: "web"}}
	is := func(ctx context.Context, want error) {
		t.Helper()
		if err := k.Verify(ctx, nil, []hold.Hold{h})[0]; !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	is(t.Context(), hold.ErrGone)
	nettest.Must(t, k.Acquire(t.Context(), h))
	s.text = "two of "
	is(t.Context(), nil)
	is(podstatus.AtEnd(t.Context()), hold.ErrChanged)
	changing = false
	is(t.Context(), hold.ErrChanged)
}
