package agent

import (
	"testing"

	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// deletionsByLink are the ways in which a DEL that names a link, and began at `w`, can reach the agent.
var deletionsByLink = map[string]func(r *rig, container, link string, w server.When){
	"live": func(r *rig, container, link string, w server.When) {
		f := key(container)
		f.Link = link
		if _, _, err := r.Delete(r.t.Context(), f, false, w); err != nil {
			r.t.Error(err)
		}
	},
	"queued": func(r *rig, container, link string, w server.When) {
		d := r.deletion(container, link)
		d.Started, d.Cut = w.Started, true
		r.enqueue(d)
		if err := r.drain.All(r.t.Context()); err != nil {
			r.t.Error(err)
		}
	},
	"queued, the agent away": func(r *rig, container, link string, w server.When) {
		d := r.deletion(container, link)
		d.Started = w.Started
		r.enqueue(d)
		r.restart()
	},
}

// A key had two ADDs in different pods. The runtime knows only the result of the first ADD, because
// the runtime died before it kept the second result. The runtime's DEL means the standing attachment,
// unless the second ADD began after the DEL.
func TestDeletionByAFormerResult(t *testing.T) {
	for how, del := range deletionsByLink {
		for _, late := range []bool{false, true} {
			name := how
			if late {
				name += ", from before the second ADD"
			}
			t.Run(name, func(t *testing.T) {
				r := start(t)
				r.add(request("c", nettest.Pod(t)))
				former, _ := r.linkOf("c")
				w := now()
				r.add(request("c", nettest.Pod(t)))
				nettest.Eventually(t, "the first is gone", func() bool { return len(r.index.All()) == 1 })
				if late {
					del(r, "c", former, w)
					r.wantAttached("c")
				} else {
					del(r, "c", former, now())
					r.wantGone("c")
				}
				r.wantClean()
			})
		}
	}
}

// The same while the former link is still there, as its release fails.
func TestDeletionByAFormerResultThatIsOwed(t *testing.T) {
	for how, del := range deletionsByLink {
		t.Run(how, func(t *testing.T) {
			r, b := startBreakable(t)
			r.add(request("c", nettest.Pod(t)))
			former, _ := r.linkOf("c")
			b.set(true, "release", "link", r.id("c"))
			r.add(request("c", nettest.Pod(t)))
			del(r, "c", former, now())
			for _, at := range r.List(key("c")) {
				if at.Releasing == nil {
					t.Errorf("left is %+v", at)
				}
			}
			b.heal()
			r.core.Engine.Retry()
			r.wantGone("c")
			r.wantClean()
		})
	}
}

// A DEL names the link of another attachment, or of none. Such a link proves nothing: the DEL means
// the attachment with the DEL's key, and the other attachment stays.
func TestDeletionByAWrongResult(t *testing.T) {
	for how, del := range deletionsByLink {
		t.Run(how, func(t *testing.T) {
			r := start(t)
			for _, c := range []string{"a", "b", "c"} {
				r.add(request(c, nettest.Pod(t)))
			}
			link, _ := r.linkOf("c")
			del(r, "a", link, now())
			r.wantGone("a")
			del(r, "b", "b"+r.core.Instance[:4]+string(hold.NewID()), now())
			r.wantGone("b")
			r.wantAttached("c")
			r.wantClean()
		})
	}
}
