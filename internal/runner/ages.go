package runner

import "time"

// precedence is how long a container's later ADDs go ahead of younger containers' ones: twice the time that the agent's plugin gives an
// ADD. A series of ADDs that lasts longer, such as of networks that a running pod is given, stands in line like everybody's.
const precedence = 2 * time.Minute

// age says when the first ADD of a container came.
type age struct {
	at    uint64 // its number among all requests
	until time.Time
}

// ages know the containers whose ADDs have begun to come. A pod with several networks, or with a network of several plugins, asks for
// one plugin after the other, and has little time for all. If each of its requests stood in line anew, pods that begin together would also
// end together: under overload none of them in time.
type ages struct {
	last uint64 // how many requests have come
	of   map[string]age
}

// next returns the place in line of a request that has come: its number, or that of the container's first ADD if it is an ADD. A
// DEL ends what its container had begun: an ADD that hangs, is undone and tried again, has to stand behind others.
func (a *ages) next(verb, container string) uint64 {
	a.last++
	switch {
	case container == "":
	case verb == "DEL":
		delete(a.of, container)
	case verb == "ADD":
		return a.first(container)
	}
	return a.last
}

func (a *ages) first(container string) uint64 {
	now := time.Now()
	if known, ok := a.of[container]; ok && now.Before(known.until) {
		return known.at
	}
	for other, known := range a.of {
		if !now.Before(known.until) {
			delete(a.of, other)
		}
	}
	a.of[container] = age{a.last, now.Add(precedence)}
	return a.last
}
