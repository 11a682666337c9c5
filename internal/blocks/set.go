// Package blocks counts the blocks of an IP pool: a Space numbers them, and a Set says which numbers are taken. Both are
// plain values that ask nobody anything.
package blocks

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Set is a set of numbers from 0 on, as ranges. The zero Set is empty.
type Set struct {
	ranges []run // ascending, apart by at least one number
}

// run is a range of numbers, both ends included.
type run struct{ first, last int64 }

// limit is more than any number of a block.
const limit = 1 << 62

// Parse reads what String writes, such as "0-41,44". Ranges have to ascend.
func Parse(text string) (Set, error) {
	var s Set
	if text == "" {
		return s, nil
	}
	s.ranges = make([]run, 0, strings.Count(text, ",")+1)
	next := int64(0) // no range begins before it
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		r := run{parseNumber(from), parseNumber(to)}
		if r.first < next || r.last < r.first {
			return Set{}, fmt.Errorf("%q is not a range of numbers that comes after the one before it", part)
		}
		if n := len(s.ranges); n > 0 && s.ranges[n-1].last+1 == r.first {
			s.ranges[n-1].last = r.last
		} else {
			s.ranges = append(s.ranges, r)
		}
		next = r.last + 1
	}
	return s, nil
}

// parseNumber returns -1 for what is no number, or written otherwise than String does.
func parseNumber(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n >= limit || strconv.FormatInt(n, 10) != text {
		return -1
	}
	return n
}

// String returns the set's ranges in ascending order, such as "0-41,44".
func (s Set) String() string {
	var b []byte
	for i, r := range s.ranges {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, r.first, 10)
		if r.last > r.first {
			b = append(b, '-')
			b = strconv.AppendInt(b, r.last, 10)
		}
	}
	return string(b)
}

// find returns the index of the first range that ends at n or later.
func (s Set) find(n int64) int {
	i, _ := slices.BinarySearchFunc(s.ranges, n, func(r run, n int64) int {
		if r.last < n {
			return -1
		}
		return 1
	})
	return i
}

// Has reports whether n is in the set.
func (s Set) Has(n int64) bool {
	i := s.find(n)
	return i < len(s.ranges) && s.ranges[i].first <= n
}

// Len returns how many numbers are in the set.
func (s Set) Len() (n int64) {
	for _, r := range s.ranges {
		n += r.last - r.first + 1
	}
	return n
}

// Free returns the lowest number from first to last that is not in the set; false if all of them are.
func (s Set) Free(first, last int64) (int64, bool) {
	n := first
	if i := s.find(n); i < len(s.ranges) && s.ranges[i].first <= n {
		n = s.ranges[i].last + 1
	}
	return n, n <= last
}

// Between reports whether any number from first to last is in the set.
func (s Set) Between(first, last int64) bool {
	i := s.find(first)
	return i < len(s.ranges) && s.ranges[i].first <= last
}

// All yields the numbers of the set in ascending order.
func (s Set) All(yield func(int64) bool) {
	for _, r := range s.ranges {
		for n := r.first; n <= r.last; n++ {
			if !yield(n) {
				return
			}
		}
	}
}

// Clone returns a set that changes apart from s.
func (s Set) Clone() Set { return Set{slices.Clone(s.ranges)} }

// Add puts n, 0 or more, into the set.
func (s *Set) Add(n int64) {
	i := s.find(n)
	if i < len(s.ranges) && s.ranges[i].first <= n {
		return
	}
	joinsLeft := i > 0 && s.ranges[i-1].last == n-1
	joinsRight := i < len(s.ranges) && s.ranges[i].first == n+1
	switch {
	case joinsLeft && joinsRight:
		s.ranges[i-1].last = s.ranges[i].last
		s.ranges = slices.Delete(s.ranges, i, i+1)
	case joinsLeft:
		s.ranges[i-1].last = n
	case joinsRight:
		s.ranges[i].first = n
	default:
		s.ranges = slices.Insert(s.ranges, i, run{n, n})
	}
}

// Remove takes n out of the set.
func (s *Set) Remove(n int64) {
	i := s.find(n)
	if i == len(s.ranges) || s.ranges[i].first > n {
		return
	}
	r := s.ranges[i]
	switch {
	case r.first == r.last:
		s.ranges = slices.Delete(s.ranges, i, i+1)
	case r.first == n:
		s.ranges[i].first = n + 1
	case r.last == n:
		s.ranges[i].last = n - 1
	default:
		s.ranges[i].last = n - 1
		s.ranges = slices.Insert(s.ranges, i+1, run{n + 1, r.last})
	}
}

// Of returns the set of some numbers, which it sorts.
func Of(numbers []int64) (s Set) {
	slices.Sort(numbers)
	for _, n := range numbers {
		if i := len(s.ranges) - 1; i >= 0 && s.ranges[i].last+1 >= n {
			s.ranges[i].last = n
		} else {
			s.ranges = append(s.ranges, run{n, n})
		}
	}
	return s
}

// Minus returns the numbers of s that are not in other.
func (s Set) Minus(other Set) (left Set) {
	for _, r := range s.ranges {
		for i := other.find(r.first); i < len(other.ranges) && other.ranges[i].first <= r.last; i++ {
			if o := other.ranges[i]; o.first > r.first {
				left.ranges = append(left.ranges, run{r.first, o.first - 1})
			}
			r.first = other.ranges[i].last + 1
		}
		if r.first <= r.last {
			left.ranges = append(left.ranges, r)
		}
	}
	return left
}
