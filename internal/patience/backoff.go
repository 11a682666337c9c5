package patience

import "time"

// Backoff returns the wait after the nth failure in a row, n from 1. The wait after the first failure
// is `first`. The wait doubles with each further failure, and is never longer than `most`.
func Backoff(first, most time.Duration, n int) time.Duration {
	for ; n > 1 && first < most; n-- {
		first *= 2
	}
	return min(first, most)
}
