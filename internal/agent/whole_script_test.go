package agent

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// A script of TestWhole is a list of waves of steps. The run takes the steps of a wave at once. Who is
// attached after each wave follows from the steps alone, whatever fails, dies or is slow on the way, and
// however many holds a batch has.

// wholeStep is a step of a wave. The script chose all fields from the wave's seed and from what was
// attached then, so that a list of seeds can be replayed with any of the seeds left out.
type wholeStep struct {
	verb string
	c    int // container
	pod  int // the pod's place, 0 to wholePods-1
	pool string
	n    int   // chooses one of several ways to do the step
	cs   []int // the containers of a gc, of a time without an agent
}

func (s wholeStep) String() string {
	return fmt.Sprintf("%s c%d pod %d %s way %d %v", s.verb, s.c, s.pod, s.pool, s.n, s.cs)
}

const (
	wholePods       = 8
	wholeContainers = 12
	exactAddresses  = 13 // of the pool "exact"
)

// wholeVerbs lists the verbs of steps, each as often as its weight says.
var wholeVerbs = weighted(map[string]int{
	"add": 150, "add exact": 30, "move": 25, "repeat": 30, "taken": 15, "no pool": 3, "no netns": 5, "late add": 10, "race": 25, "race queued": 25, "twins": 15,
	"delete": 110, "delete unknown": 8, "late delete": 15, "gc": 15,
	"away": 8, "hung": 30, "replay": 15, "garbage": 3,
	"check": 25, "status": 3, "sweep": 25, "tick": 30, "set clock": 15, "restart": 3, "moved": 1, "reload": 6, "reboot": 3,
	"end pod": 15, "rebind": 10, "damage": 40, "flush": 8, "unroute": 4, "stray": 4,
	"ail": 60, "again": 20, "bulk": 20, "late queued": 10, "hurried": 10, "adopt": 8, "lose": 2,
})

func weighted(weights map[string]int) []string {
	var all []string
	for _, verb := range slices.Sorted(maps.Keys(weights)) {
		all = append(all, slices.Repeat([]string{verb}, weights[verb])...)
	}
	return all
}

// wholeBerth is what the script knows of an attached container.
type wholeBerth struct {
	pod    int // the pod's place; -1: no path leads to the pod any more, though its namespace is there
	pool   string
	exact  int  // which address of the pool "exact"
	hurt   bool // somebody has damaged it
	doomed bool // its pod is gone: it is released sooner or later
}

// wholeScript is a random walk of the model.
type wholeScript struct {
	*rand.Rand
	attached map[int]wholeBerth
	extra    bool // the second pool is configured
	alone    bool // the wave's step is the only one of the wave
	mending  bool // a step of the wave mends what is not as it should be
	cutting  bool // a plugin cuts somebody off, and has not yet written that down
	busyC    map[int]bool
	busyPod  map[int]bool
	about    int // the container that ails, and that a step of the wave is about; -1: none
}

func newWholeScript() *wholeScript { return &wholeScript{attached: map[int]wholeBerth{}} }

// wave returns the steps that a wave's seed stands for, and moves the model on.
func (s *wholeScript) wave(seed uint64) []wholeStep {
	s.Rand = rand.New(rand.NewPCG(seed, 2))
	s.busyC, s.busyPod, s.alone = map[int]bool{}, map[int]bool{}, false
	s.mending, s.cutting = false, false
	var wave []wholeStep
	s.about = -1
	for n := []int{1, 1, 1, 1, 2, 3, 6}[s.IntN(7)]; n > 0; n-- {
		verb := wholeVerbs[s.IntN(len(wholeVerbs))]
		if s.about >= 0 {
			verb = s.pair()
		}
		if verb == "ail" {
			n += 2
		}
		st := wholeStep{verb: verb, c: -1, pod: -1, pool: "default", n: s.IntN(1 << 16)}
		if st, ok := s.step(st, len(wave) == 0); ok {
			wave = append(wave, st)
		}
		if s.alone {
			break
		}
	}
	return wave
}

// step chooses what a step is about. It returns false if there is nothing that the step can be about.
func (s *wholeScript) step(st wholeStep, first bool) (wholeStep, bool) {
	switch st.verb {
	case "check", "status", "sweep", "stray", "garbage", "unroute", "set clock":
		if st.verb == "check" {
			return st, s.pick(&st.c, true)
		}
		// A sweep that has just seen a plugin's cut undoes the cut for a moment, until the queue
		// wakes the agent.
		if st.verb == "sweep" && s.cutting {
			return st, false
		}
		s.mending = s.mending || st.verb == "sweep"
		return st, true
	case "ail":
		return st, s.pickAny(&st.c)
	case "hurried":
		s.mending = true
		return st, !s.cutting
	case "tick", "flush", "replay", "restart", "moved", "reload", "reboot", "gc", "away", "end pod", "rebind", "bulk", "adopt", "lose":
		if !first {
			return st, false
		}
		s.alone = true
		return s.aloneStep(st)
	case "no pool", "no netns", "delete unknown":
		return st, s.pick(&st.c, false) && (st.verb == "delete unknown" || s.pickPod(&st.pod))
	case "add", "add exact", "race", "race queued", "twins", "late add", "late queued":
		if !s.pick(&st.c, false) || !s.pickPod(&st.pod) {
			return st, false
		}
		switch {
		case st.verb == "add exact":
			st.pool = "exact"
			if !s.pickOne(&st.n, exactAddresses, map[int]bool{}, s.freeExact) {
				return st, false
			}
		case s.extra && st.n%4 == 0:
			st.pool = "extra"
		}
		if st.verb != "race" && st.verb != "race queued" && st.verb != "late add" && st.verb != "late queued" {
			s.attached[st.c] = wholeBerth{pod: st.pod, pool: st.pool, exact: st.n}
		}
		return st, true
	case "move":
		if !s.pick(&st.c, true) || !s.pickPod(&st.pod) {
			return st, false
		}
		s.busyPod[s.attached[st.c].pod] = true // the pod's place is free after this wave
		s.attached[st.c] = wholeBerth{pod: st.pod, pool: st.pool}
		return st, true
	case "taken": // somebody else's place
		if !s.pick(&st.c, false) {
			return st, false
		}
		var tenant int
		if !s.pickWell(&tenant) {
			return st, false
		}
		st.pod = s.attached[tenant].pod
		return st, true
	case "repeat", "late delete":
		if !s.pickWell(&st.c) {
			return st, false
		}
		b := s.attached[st.c]
		if st.verb == "repeat" { // the repeated ADD mends the attachment
			b.hurt = false
			s.attached[st.c] = b
		}
		st.pod = b.pod
		return st, true
	case "damage":
		if !s.pickWell(&st.c) {
			return st, false
		}
		b := s.attached[st.c]
		b.hurt = true
		s.attached[st.c] = b
		return st, true
	case "delete", "hung", "again":
		if st.verb == "hung" && s.mending || !s.pick(&st.c, true) {
			return st, false
		}
		s.cutting = s.cutting || st.verb == "hung"
		s.busyPod[s.attached[st.c].pod] = true // the pod's place is free after this wave
		delete(s.attached, st.c)
		return st, true
	}
	panic("no such verb: " + st.verb)
}

// aloneStep is step for a verb whose step has to be the only one of its wave.
func (s *wholeScript) aloneStep(st wholeStep) (wholeStep, bool) {
	switch st.verb {
	case "reload":
		s.extra = !s.extra
	case "reboot":
		st.cs = s.some(2)
		for c, b := range s.attached {
			b.doomed = true
			s.attached[c] = b
		}
		s.drop(st.cs)
	case "adopt":
		return st, s.pick(&st.c, false)
	case "lose":
		s.settled() // a loss waits first until all has settled
		for _, b := range s.attached {
			if b.pod < 0 && !b.doomed || b.pool == "extra" && !s.extra { // what the kernel does not tell
				return st, false
			}
		}
		if st.cs = s.some(2); st.n%2 == 0 {
			st.cs = s.some(1)
		}
		s.drop(st.cs)
	case "gc", "bulk":
		st.cs = s.some(3)
		s.drop(st.cs)
	case "away":
		st.cs = s.some(2)
		s.drop(st.cs)
	case "end pod":
		st.pod = s.IntN(wholePods)
		for c, b := range s.attached {
			if b.pod == st.pod {
				b.doomed, b.pod = true, -1
				s.attached[c] = b
			}
		}
	case "rebind": // the path leads to another pod; the former pod lives on
		st.pod = s.IntN(wholePods)
		for _, b := range s.attached {
			if b.pod == st.pod && b.hurt { // a pod without a path cannot be asked what it lacks
				return st, false
			}
		}
		for c, b := range s.attached {
			if b.pod == st.pod {
				b.pod = -1
				s.attached[c] = b
			}
		}
	}
	return st, true
}

// settled tells the script that all has settled: doomed attachments are gone, and damaged ones are
// mended.
func (s *wholeScript) settled() {
	for c, b := range s.attached {
		if b.doomed {
			delete(s.attached, c)
			continue
		}
		b.hurt = false
		s.attached[c] = b
	}
}

// some chooses each attached container with a chance of 1 in n.
func (s *wholeScript) some(n int) []int {
	var cs []int
	for _, c := range slices.Sorted(maps.Keys(s.attached)) {
		if s.IntN(n) == 0 {
			cs = append(cs, c)
		}
	}
	return cs
}

func (s *wholeScript) drop(cs []int) {
	for _, c := range cs {
		delete(s.attached, c)
	}
}

// pick chooses a container that is attached or not, and that no other step of
// the wave is about.
func (s *wholeScript) pick(c *int, attached bool) bool {
	return s.pickOne(c, wholeContainers, s.busyC, func(i int) bool {
		_, is := s.attached[i]
		return is == attached
	})
}

// pickAny chooses a container whose holds are to ail. A later step of the same wave is about this
// container, too.
func (s *wholeScript) pickAny(c *int) bool {
	*c = s.IntN(wholeContainers)
	if _, is := s.attached[*c]; !is && s.IntN(3) > 0 { // rather a container that is attached
		for other := range wholeContainers {
			if _, is := s.attached[other]; is && s.IntN(4) == 0 {
				*c = other
			}
		}
	}
	s.about = *c
	return true
}

// pair chooses the verb of a step about the container whose holds ail.
func (s *wholeScript) pair() string {
	verbs := []string{"add", "add", "race", "race queued", "twins", "late add", "late queued", "ail"}
	if _, is := s.attached[s.about]; is {
		verbs = []string{"delete", "delete", "again", "again", "hung", "move", "damage", "repeat", "check", "late delete", "ail"}
	}
	return verbs[s.IntN(len(verbs))]
}

// freeExact reports whether nobody has asked for an address of the pool "exact".
func (s *wholeScript) freeExact(n int) bool {
	for _, b := range s.attached {
		if b.pool == "exact" && b.exact == n {
			return false
		}
	}
	return true
}

// pickWell chooses a container that is attached in a pod with a path.
func (s *wholeScript) pickWell(c *int) bool {
	return s.pickOne(c, wholeContainers, s.busyC, func(i int) bool {
		b, is := s.attached[i]
		return is && !b.doomed && b.pod >= 0
	})
}

// pickPod chooses a pod that nobody is in.
func (s *wholeScript) pickPod(p *int) bool {
	return s.pickOne(p, wholePods, s.busyPod, func(i int) bool {
		for _, b := range s.attached {
			if b.pod == i && !b.doomed {
				return false
			}
		}
		return true
	})
}

func (s *wholeScript) pickOne(i *int, n int, busy map[int]bool, ok func(int) bool) bool {
	first := s.IntN(n)
	if n == wholeContainers && s.about >= 0 {
		first, s.about = s.about, -1
	}
	for j := range n {
		if k := (first + j) % n; !busy[k] && ok(k) {
			busy[k] = true
			*i = k
			return true
		}
	}
	return false
}

// state says who is attached, in words that do not depend on chance.
func (s *wholeScript) state() string {
	var lines []string
	for c, b := range s.attached {
		lines = append(lines, fmt.Sprintf("c%d in pod %d from %s", c, b.pod, b.pool))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
