package kube

import (
	"errors"
	"testing"
)

// An API server whose lists are all old has one failure, since the first of them: each of these lists ends well.
func TestOldListsAreOneFailure(t *testing.T) {
	var w Watcher
	w.fails.noteOld("nodes", errors.New("older"))
	first := w.fails.all[topic{"nodes", true}].since
	w.fails.note(t.Context(), "nodes", nil)
	if len(w.Failures()) != 1 {
		t.Error("a list that ends well ends the failure of old ones")
	}
	w.fails.noteOld("nodes", errors.New("older"))
	if again := w.fails.all[topic{"nodes", true}].since; !again.Equal(first) {
		t.Errorf("the failure is since %v, and then since %v", first, again)
	}
	w.fails.noteOld("nodes", nil)
	if all := w.Failures(); len(all) > 0 {
		t.Errorf("after a list that is new: %q", all)
	}
}
