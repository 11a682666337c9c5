package engine_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// A script is what the model test asks of an engine: waves of steps. The steps of a wave are
// taken at once. Which owners stand after each wave follows from the script alone, whatever
// fails, dies or is slow on the way.

// verb is what a step does.
type verb int

const (
	taking    verb = iota // a free name
	claim                 // a name that an owner has: Take must refuse it
	releasing             // a name, with all that need it
	race                  // a free name is taken and released at once
	orphan                // a name is taken while one that it needs is released
	undo                  // a name loses a thing, and is released while a repair takes the thing again
	sweep
	repair // a name
	lose   // a thing of a name vanishes behind the engine's back
	stray  // a thing with our stamp and no owner appears
	change // a name loses a thing, and at times a need or an address, and gets another thing
	expire // a process of a name comes to its end
	grant  // a name gets an address, which rests when no name has it any more
	pass   // an address passes from one name to another
	verbs
)

type step struct {
	verb  verb
	name  string
	needs []string // other names; change: the need that is lost
	kinds []string
	at    int  // index of a thing; change: the lost one; expire: the process
	tag   int  // the step's number
	joins bool // taking, race: the name joins the names that it needs

	address string // claim, change, grant, pass
	from    string // change, pass: the name that had the address; "" in a change: the address is lost
}

// wanted is what the model knows of a name that is taken.
type wanted struct {
	kinds     []string
	needs     []string
	addresses []string
	// retires says that the name is released, and waits for the names that need it.
	retires bool
}

// script is a random walk of the model.
type script struct {
	*rand.Rand
	names []string
	model map[string]wanted
	busy  map[string]int // by name, in this wave: 1: steps share the name; 2: one step has the name alone
	tags  int
	rests []string // addresses that a name had, and no name has any more
}

func newScript(seed uint64) *script {
	s := &script{Rand: rand.New(rand.NewPCG(seed, 1)), model: map[string]wanted{}}
	for i := range 14 {
		s.names = append(s.names, fmt.Sprintf("n%d", i))
	}
	return s
}

// wave returns the next steps, and makes them in the model.
func (s *script) wave() []step {
	s.busy = map[string]int{}
	var wave []step
	for range 1 + s.IntN(6) {
		if step, ok := s.step(); ok {
			wave = append(wave, step)
		}
	}
	return wave
}

func (s *script) step() (step, bool) {
	s.tags++
	st := step{verb: verb(s.IntN(int(verbs))), tag: s.tags}
	if s.IntN(2) == 0 { // most steps take or release something
		st.verb = []verb{taking, releasing}[s.IntN(2)]
	} else if s.IntN(3) == 0 { // and many of the others change something
		st.verb = []verb{change, grant, grant, expire}[s.IntN(4)]
	}
	switch st.verb {
	case sweep, stray:
		return st, true
	case taking, race:
		ok := s.pick(&st.name, false, 2)
		st.kinds = s.kinds()
		for range s.IntN(3) {
			var need string
			if ok && s.IntN(2) == 0 && s.pick(&need, true, 1) && !slices.Contains(st.needs, need) {
				st.needs = append(st.needs, need)
			}
		}
		st.joins = len(st.needs) > 0 && s.IntN(2) == 0
		if ok && st.verb == taking {
			s.model[st.name] = wanted{kinds: st.kinds, needs: st.needs}
		}
		return st, ok
	case change:
		if !s.pick(&st.name, true, 2) {
			return st, false
		}
		w := s.model[st.name]
		if st.at = s.IntN(len(w.kinds)); w.kinds[st.at] == "block" {
			return st, false // without its block, the name's release would not wait any more
		}
		st.kinds = s.kinds()[:1]
		w.kinds = append(slices.Delete(slices.Clone(w.kinds), st.at, st.at+1), st.kinds...)
		if len(w.needs) > 0 && s.busy[w.needs[0]] < 2 && s.IntN(2) == 0 {
			st.needs, w.needs = w.needs[:1], w.needs[1:]
			s.busy[st.needs[0]] = 1 // the release of that need would take the name with it, or not
		}
		s.model[st.name] = w
		if passes := s.IntN(2) == 0 && s.passes(&st); !passes && len(w.addresses) > 0 {
			w.addresses, st.address = split(w.addresses, s.IntN(len(w.addresses)))
			s.rests = append(s.rests, st.address)
			s.model[st.name] = w
		}
		s.retire()
		return st, true
	case grant:
		if !s.pick(&st.name, true, 2) {
			return st, false
		}
		w := s.model[st.name]
		st.address = fmt.Sprintf("a%d", s.tags)
		w.addresses = append(slices.Clip(w.addresses), st.address)
		s.model[st.name] = w
		return st, true
	case pass:
		return st, s.pick(&st.name, true, 2) && s.passes(&st)
	case expire:
		if !s.pick(&st.name, true, 1) {
			return st, false
		}
		w := s.model[st.name]
		if st.at = slices.Index(w.kinds, "proc"); st.at < 0 {
			return st, false
		}
		w.kinds = slices.Clone(w.kinds)
		w.kinds[st.at] = "ended"
		s.model[st.name] = w
		return st, true
	case claim:
		if ok := s.pick(&st.name, true, 1); !ok {
			return st, false
		}
		if has := s.model[st.name].addresses; len(has) > 0 && s.IntN(2) == 0 {
			st.address = has[s.IntN(len(has))]
		} else if len(s.rests) > 0 && s.IntN(2) == 0 {
			st.name, st.address = "", s.rests[s.IntN(len(s.rests))]
		}
		return st, true
	case lose, repair:
		return st, s.pick(&st.name, true, 1)
	case orphan:
		need := ""
		if !s.pick(&st.name, false, 2) || !s.pick(&need, true, 0) {
			return st, false
		}
		st.needs, st.kinds = []string{need}, s.kinds()
		return st, s.drop(need)
	default:
		return st, s.pick(&st.name, true, 0) && s.drop(st.name)
	}
}

// passes lets a step pass an address to its name from another one, if another one has an
// address and is not busy in this wave.
func (s *script) passes(st *step) bool {
	for _, i := range s.Perm(len(s.names)) {
		n := s.names[i]
		w, is := s.model[n]
		if !is || w.retires || s.busy[n] > 0 || len(w.addresses) == 0 {
			continue
		}
		s.busy[n], st.from = 2, n
		w.addresses, st.address = split(w.addresses, s.IntN(len(w.addresses)))
		s.model[n] = w
		to := s.model[st.name]
		to.addresses = append(slices.Clip(to.addresses), st.address)
		s.model[st.name] = to
		return true
	}
	return false
}

// split returns a list without its i-th element, and that element.
func split(all []string, i int) ([]string, string) {
	return slices.Delete(slices.Clone(all), i, i+1), all[i]
}

// pick chooses a name that stands or, if standing is false, a name that does not. The name is not
// busy in this wave, and is busy for this use from then on.
func (s *script) pick(name *string, standing bool, use int) bool {
	for _, i := range s.Perm(len(s.names)) {
		n := s.names[i]
		w, is := s.model[n]
		if is == standing && !w.retires && (s.busy[n] == 0 || s.busy[n] == 1 && use == 1) {
			s.busy[n] = max(s.busy[n], use)
			*name = n
			return true
		}
	}
	return false
}

// drop takes a name, and all names that go with it, out of the model, unless one of these names is
// busy. A name that waits for names that need it goes when the last of those has gone.
func (s *script) drop(name string) bool {
	all := family(s.model, name)
	if slices.ContainsFunc(all, func(n string) bool { return s.busy[n] > 0 }) {
		return false
	}
	for _, n := range all {
		s.busy[n] = 2
		w := s.model[n]
		w.retires = true
		s.model[n] = w
	}
	s.retire()
	return true
}

// retire takes the released names out of the model that no other name needs any more.
func (s *script) retire() {
	for again := true; again; {
		again = false
		for n, w := range s.model {
			if w.retires && len(needers(s.model, n)) == 0 {
				s.busy[n] = 2
				s.rests = append(s.rests, w.addresses...)
				delete(s.model, n)
				again = true
			}
		}
	}
	slices.Sort(s.rests)
}

// waits reports whether the release of an owner of these kinds waits for the owners that need it.
func waits(kinds []string) bool { return slices.Contains(kinds, "block") }

// family returns a name and the names that go with it.
func family(model map[string]wanted, name string) []string {
	all := []string{name}
	if waits(model[name].kinds) {
		return all
	}
	for _, n := range needers(model, name) {
		all = append(all, family(model, n)...)
	}
	return all
}

// needers returns the names that need a name.
func needers(model map[string]wanted, name string) []string {
	var all []string
	for n, w := range model {
		if slices.Contains(w.needs, name) {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all
}

func (s *script) kinds() []string {
	kinds := make([]string, 1+s.IntN(5))
	for i := range kinds {
		kinds[i] = []string{"lease", "wire", "wire", "rule", "note", "proc", "port"}[s.IntN(7)]
	}
	if s.IntN(4) == 0 {
		kinds = append(kinds, "block")
	}
	return kinds
}

// state says in words what the ledger and the world should have.
func (s *script) state() string {
	var lines []string
	for n, w := range s.model {
		kinds := w.kinds
		if w.retires {
			kinds = append(slices.Clip(kinds), "releasing")
		}
		lines = append(lines, line(n, w.needs, kinds, w.addresses))
	}
	slices.Sort(lines)
	return strings.Join(append(lines, resting(s.rests)), "\n")
}

func line(name string, needs, kinds, addresses []string) string {
	return fmt.Sprintf("%s on %q has %v %v", name, needs, kinds, slices.Sorted(slices.Values(addresses)))
}

// resting says which addresses rest.
func resting(addresses []string) string {
	return fmt.Sprint("resting: ", slices.Sorted(slices.Values(addresses)))
}
