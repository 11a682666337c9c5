package main

import (
	"fmt"
	"slices"
	"time"
)

// percentile returns the smallest element of ds that at least p percent of the elements do
// not exceed (nearest rank). ds must not be empty, and is not changed.
func percentile(ds []time.Duration, p float64) time.Duration {
	sorted := slices.Sorted(slices.Values(ds))
	rank := int(p/100*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}

// median returns the middle one of values, or the mean of the two middle ones if their
// number is even. values must not be empty, and is not changed.
func median[T time.Duration | float64](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	m := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[m]
	}
	return (sorted[m-1] + sorted[m]) / 2
}

// series has one figure from each round.
type series []time.Duration

// ratios divides the figures of two series round by round, since both series had the same noise
// within a round. ratios returns nil unless both series have the same number of rounds.
func (s series) ratios(base series) []float64 {
	if len(s) != len(base) {
		return nil
	}
	rs := make([]float64, len(s))
	for i := range s {
		rs[i] = float64(s[i]) / float64(base[i])
	}
	return rs
}

// ratio returns the median of the rounds' ratios, and a text with the least and the
// greatest ratio as well, such as "1.52x (1.44-1.61)"; "" if there are none.
func (s series) ratio(base series) (middle float64, text string) {
	rs := s.ratios(base)
	if len(rs) == 0 {
		return 0, ""
	}
	middle = median(rs)
	return middle, fmt.Sprintf("%.2fx (%.2f-%.2f)", middle, slices.Min(rs), slices.Max(rs))
}

// span writes the least and the greatest figure of the series, in ms.
func (s series) span() string { return fmt.Sprintf("%s-%s", num(slices.Min(s)), num(slices.Max(s))) }

// num writes a duration in ms with three figures.
func num(d time.Duration) string {
	ms := float64(d) / 1e6
	switch {
	case ms < 1:
		return fmt.Sprintf("%.3f", ms)
	case ms < 10:
		return fmt.Sprintf("%.2f", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}
