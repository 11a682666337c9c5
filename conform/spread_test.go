package conform

import (
	"slices"
	"testing"
)

func TestSpread(t *testing.T) {
	of := func(n int) (all []point) {
		for i := range n {
			all = append(all, point{change: i + 1})
		}
		return all
	}
	for _, test := range []struct {
		n, most int
		want    []int
	}{
		{3, 12, []int{1, 2, 3}},
		{12, 4, []int{1, 4, 8, 12}},
		{101, 3, []int{1, 51, 101}},
		{5, 1, []int{1}},
		{0, 12, nil},
	} {
		var got []int
		for _, p := range spread(of(test.n), test.most) {
			got = append(got, p.change)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%d of %d are %v, not %v", test.most, test.n, got, test.want)
		}
	}
}

// A thread's call is counted once, when it begins.
func TestTracedCall(t *testing.T) {
	const trace = "12 write(3, \"x\", 1) = 1\n13 sendto(4, <unfinished ...>\n12 setns(5, CLONE_NEWNET) = 0\n" +
		"13 <... sendto resumed>) = 32\n13 +++ exited with 0 +++\n12 --- SIGCHLD {si_signo=SIGCHLD} ---\n"
	if got := len(tracedCall.FindAllString(trace, -1)); got != 3 {
		t.Errorf("%d calls were counted, not 3", got)
	}
}
