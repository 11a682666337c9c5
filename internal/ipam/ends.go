package ipam

// ends has the slots in cooldown, ordered by when their cooldowns end. As long as nobody
// changes the cooldown or the clock, cooldowns begin in the order in which they end, or
// nearly so. So an end that comes in order goes into a queue, and any other into a heap
// beside it.
type ends struct {
	queue []end // in order
	first int   // the ends before this place of queue have been popped
	heap  heap
	seq   uint32 // of the end pushed last
}

type end struct {
	until int64  // Unix nanoseconds
	slot  uint32 // the slot in cooldown
	seq   uint32 // counts pushes: orders ends of the same time as they were pushed
}

func (a end) before(b end) bool {
	if a.until != b.until {
		return a.until < b.until
	}
	return int32(a.seq-b.seq) < 0 // also when seq has wrapped
}

func (s *ends) push(until int64, slot uint32) {
	s.seq++
	e := end{until, slot, s.seq}
	n := len(s.queue)
	if s.first < n && e.before(s.queue[n-1]) {
		s.heap.push(e)
		return
	}
	if n == cap(s.queue) && s.first > n/2 { // reuse the room of popped ends instead of growing
		n = copy(s.queue, s.queue[s.first:])
		s.queue, s.first = s.queue[:n], 0
	}
	s.queue = append(s.queue, e)
}

// front returns the earliest end; false if there is none.
func (s *ends) front() (end, bool) {
	switch {
	case s.first < len(s.queue) && (len(s.heap) == 0 || s.queue[s.first].before(s.heap[0])):
		return s.queue[s.first], true
	case len(s.heap) > 0:
		return s.heap[0], true
	}
	return end{}, false
}

// pop removes the earliest end.
func (s *ends) pop() {
	switch e, _ := s.front(); {
	case s.first == len(s.queue) || s.queue[s.first] != e:
		s.heap.pop()
	case s.first == len(s.queue)-1:
		s.queue, s.first = s.queue[:0], 0
	default:
		s.first++
	}
}

// heap is a binary heap: the children of i are 2i+1 and 2i+2.
type heap []end

func (h *heap) push(e end) {
	*h = append(*h, e)
	a, i := *h, len(*h)-1
	for i > 0 && e.before(a[(i-1)/2]) {
		a[i] = a[(i-1)/2]
		i = (i - 1) / 2
	}
	a[i] = e
}

func (h *heap) pop() {
	n := len(*h) - 1
	a, e := (*h)[:n], (*h)[n]
	*h = a
	i := 0
	for {
		child := 2*i + 1
		if child+1 < n && a[child+1].before(a[child]) {
			child++
		}
		if child >= n || !a[child].before(e) {
			break
		}
		a[i] = a[child]
		i = child
	}
	if n > 0 {
		a[i] = e
	}
}
