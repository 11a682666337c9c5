package kube

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// failures knows what the API server does not tell the agent at the moment, and why. The reflectors try again for ever.
type failures struct {
	mu  sync.Mutex
	all map[topic]failure
}

// topic is what the API server does not tell.
type topic struct {
	what string
	old  bool // it answers, with lists that are older than what it has told: a list that ends well is no end of that
}

type failure struct {
	since time.Time
	err   error
}

// Failures says what the API server does not tell the agent, since when and why, in order.
func (w *Watcher) Failures() (all []string) {
	w.fails.mu.Lock()
	defer w.fails.mu.Unlock()
	for t, f := range w.fails.all {
		all = append(all, fmt.Sprintf("the API server does not say what there is of %s since %s: %v", t.what, f.since.UTC().Format(time.RFC3339), f.err))
	}
	slices.Sort(all)
	return all
}

// note notes how a list or the beginning of a watch has ended.
func (f *failures) note(ctx context.Context, what string, err error) {
	if ctx.Err() != nil {
		err = nil
	}
	f.set(topic{what: what}, err)
}

// noteOld notes whether a list was older than what the API server had told before (err).
func (f *failures) noteOld(what string, err error) { f.set(topic{what, true}, err) }

func (f *failures) set(t topic, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.all, t)
		return
	}
	was, failed := f.all[t]
	if !failed {
		was.since = time.Now()
	}
	if f.all == nil {
		f.all = map[topic]failure{}
	}
	f.all[t] = failure{was.since, err}
}

// watch returns what lists and watches as `from` does, and has the failures noted.
func (f *failures) watch(what string, from cache.ListerWatcher) cache.ListerWatcher {
	with := cache.ToListerWatcherWithContext(from)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := with.ListWithContext(ctx, o)
			f.note(ctx, what, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			news, err := with.WatchWithContext(ctx, o)
			if !apierrors.IsInvalid(err) { // a server that does not know such watches as are lists gets a list instead
				f.note(ctx, what, err)
			}
			return news, err
		},
	}
}
