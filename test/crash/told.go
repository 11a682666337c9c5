package main

import (
	"context"

	"github.com/berth-net/berth/api"
)

// noteThere notes attachments whose end the history has to tell.
func (w *world) noteThere(all []api.Attachment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range all {
		w.there[at.ID] = true
	}
}

// told checks that the history tells the end of each attachment that was there and is gone, and
// tells each end once. Then told forgets the attachments that are gone.
func (w *world) told() error {
	all, err := w.list()
	if err != nil {
		return err
	}
	pasts := map[string]int{}
	var end api.PastEnd
	for p, err := range w.api.History(context.Background(), api.PastFilter{}, &end) {
		if err != nil {
			return err
		}
		if p.Ended != nil {
			pasts[p.Attachment.ID]++
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	stays := map[string]bool{}
	for _, at := range all {
		stays[at.ID] = true
	}
	for id := range w.there {
		if n := pasts[id]; !stays[id] && n != 1 {
			return left("the history tells the end of %s %d times: %+v", id, n, end)
		}
	}
	w.there = stays
	return nil
}
