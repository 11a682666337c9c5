package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/node/nodetest"
	"github.com/berth-net/berth/internal/stamp"
)

// doAway does the steps that happen while no agent runs, and those that change the files of
// deletions.
func (r *wholeRun) doAway(s wholeStep) {
	switch s.verb {
	case "moved":
		r.finish()
		back := r.world.Move()
		r.plan = fault.New(1<<30, fault.FailBefore)
		if err := r.openAgent(r.world.Open(r.plan, r.linkRules)); !errors.Is(err, daemon.ErrMoved) {
			r.fail("opening in another network namespace: %v", err)
		}
		back()
		r.live(true)
	case "away", "reboot":
		r.finish()
		for i, c := range s.cs {
			r.pluginDelete(c, s.n>>i)
		}
		if s.n&1 == 0 {
			r.world.Flush()
		}
		if s.verb == "reboot" {
			r.reboot()
		}
		r.live(true)
	case "replay": // as by an agent that was killed before it removed the file, or by a backup
		if len(r.replays) > 0 {
			saved := r.replays[s.n%len(r.replays)]
			r.note("replay of %s", saved.raw)
			r.putFile(saved.name, saved.raw)
		}
	case "garbage":
		if len(r.replays) > 0 {
			saved := r.replays[s.n%len(r.replays)]
			name := saved.name[:len(saved.name)-len("00000000.json")] + fmt.Sprintf("%08x.json", s.n)
			r.mu.Lock()
			r.damaged++
			r.mu.Unlock()
			r.putFile(name, slices.Concat(saved.raw[:s.n%len(saved.raw)], []byte("x")))
		}
	}
}

// reboot reboots the node: of the agent, only the files in /var are left.
func (r *wholeRun) reboot() {
	r.sum.boots++
	r.started = 0
	r.passed = map[int]int64{}
	r.lost = nil
	if r.world.ClockSet() { // then nothing tells how long a released address has rested
		for a, was := range r.holders {
			if !was.left.IsZero() {
				delete(r.holders, a)
			}
		}
	}
	r.world.Reboot()
	if err := os.RemoveAll(r.root.Run()); err != nil {
		r.fail("%v", err)
	}
	for i := range r.pods {
		r.pods[i] = r.world.Pod(fmt.Sprintf("/run/netns/%d", i))
	}
}

// pluginDelete is a DEL that no agent answers: the plugin cuts the pod off and
// writes the deletion down, in one of the ways that its input allows.
func (r *wholeRun) pluginDelete(c, way int) {
	b := r.leave(c)
	if b == nil {
		return // an earlier try of the same step has deleted c
	}
	rec := r.record(c, b.pod)
	if way%4 > 0 { // with a prevResult
		for _, a := range b.addrs {
			rec.Addresses = append(rec.Addresses, a.String())
		}
		rec.Link, rec.Cut = r.kept(c, way>>3), true
	}
	if err := deletions.Write(r.root, rec); err != nil {
		r.fail("writing the deletion of c%d: %v", c, err)
		return
	}
	r.note("queued: %+v", rec)
	r.mu.Lock()
	delete(r.unsure, c)
	r.queued[c] = b
	r.mu.Unlock()
	cut := r.pluginCut(rec.Link, keyFor(c), b.pod, rec.Started) // a pod with a queued deletion does not come back
	if slices.Contains(cut, b.link) {
		r.promise(b)
	}
	if way&4 == 0 {
		r.save(rec)
	}
	r.world.Notice()
}

// record returns what a plugin writes down of a DEL that begins now and has no prevResult.
func (r *wholeRun) record(c int, pod *nodetest.Pod) deletions.Record {
	key := wholeKey(c)
	return deletions.Record{
		Network: key.Network, Container: key.Container, Ifname: key.Ifname,
		Netns: pod.Ref().Path, Boot: r.world.Boot(), Started: r.when().Started,
	}
}

// doRaceQueued adds a container while a plugin deletes it. No agent answers the plugin: the plugin
// writes the deletion down, and cuts off what it finds, at any moment of the ADD, whose commits are slow.
// From then on no link of that ADD may come up (ruleQueued).
func (r *wholeRun) doRaceQueued(s wholeStep) bool {
	r.leave(s.c)
	if s.n&1 == 0 {
		r.ails.begin(&ail{op: "commit", c: -1, times: 1 + s.n>>1%3, hangs: true, deaf: true}, time.Second)
	}
	pod := r.pods[s.pod]
	ctx, cancel := r.patience()
	defer cancel()
	when := r.when()
	rec := r.record(s.c, pod)
	var both sync.WaitGroup
	both.Go(func() {
		raw, err := r.Add(ctx, r.ask(s, pod.Ref(), ""), when)
		r.note("ADD of c%d to pod %d, beside a queued deletion: %s, %v", s.c, s.pod, raw, err)
	})
	both.Go(func() {
		time.Sleep(time.Duration(s.n>>3%64) * time.Millisecond)
		if err := deletions.Write(r.root, rec); err != nil {
			r.fail("writing the deletion of c%d: %v", s.c, err)
			return
		}
		r.world.Pause()
		cut := r.pluginCut("", keyFor(s.c), pod, rec.Started)
		r.note("queued: %+v, cut off %v", rec, cut)
		r.mu.Lock()
		r.passed[s.c] = rec.Started
		r.mu.Unlock()
		r.world.Pause()
		r.world.Notice()
	})
	both.Wait()
	return r.insistDelete(s.c, s.n)
}

// pluginCut sets down the links that a plugin finds of an attachment, and returns their names. These
// are the link that prevResult names, unless the stamp is another attachment's, and the link that leads
// into the pod, if it has the attachment's stamp. A link that is half-made is deleted. A link whose ADD
// began after the DEL stays up.
func (r *wholeRun) pluginCut(named string, k attachment.Key, pod *nodetest.Pod, started int64) (cut []string) {
	if l, there := r.world.Link(named); there {
		if s, ok := stamp.Parse(l.Alias); !ok || s.Is(k) && s.Start <= started {
			cut = append(cut, named)
		}
	}
	if l, there := r.world.LinkTo(pod.Ref().Path, "eth0"); there {
		if s, ok := stamp.Parse(l.Alias); ok && s.Is(k) && s.Start <= started {
			cut = append(cut, l.Name)
		}
	}
	for _, name := range cut {
		r.world.SetDown(name)
		if l, there := r.world.Link(name); there && l.Group == r.node.Groups.Coming() {
			r.world.DeleteLink(name)
		}
	}
	return cut
}

// save keeps the bytes of a deletion's file, for a later step "replay".
func (r *wholeRun) save(rec deletions.Record) {
	found, err := filepath.Glob(filepath.Join(deletions.Path(r.root), fmt.Sprintf("*-%016x-*.json", rec.Started)))
	if err != nil || len(found) == 0 {
		return // done already
	}
	raw, err := os.ReadFile(found[0])
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.replays = append(r.replays, savedFile{filepath.Base(found[0]), raw})
	r.replays = r.replays[max(0, len(r.replays)-30):]
}

// savedFile is a deletion's file.
type savedFile struct {
	name string
	raw  []byte
}

// putFile puts a file into the queue.
func (r *wholeRun) putFile(name string, raw []byte) {
	tmp := filepath.Join(string(r.root), name)
	err := os.WriteFile(tmp, raw, 0o600)
	if err == nil {
		err = os.Rename(tmp, filepath.Join(deletions.Path(r.root), name))
	}
	if err != nil {
		r.fail("putting a file into the queue: %v", err)
	}
	r.world.Notice()
}

// emptied reports whether no deletion waits.
func (r *wholeRun) emptied() bool {
	pending, err := r.drain.Pending()
	if err != nil {
		r.fail("looking into the queue: %v", err)
	}
	return len(pending) == 0
}

// setAside checks that the agent shows each damaged file, and deletes these files.
func (r *wholeRun) setAside() {
	all, err := r.drain.Damaged()
	if err != nil || len(all) != r.damaged {
		r.fail("%d files were damaged, and shown are %v, %v", r.damaged, all, err)
	}
	for _, d := range all {
		if err := os.Remove(filepath.Join(deletions.Path(r.root), "damaged", d.Name)); err != nil {
			r.fail("%v", err)
		}
	}
	r.damaged = 0
}
