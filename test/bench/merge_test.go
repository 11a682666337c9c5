package main

import (
	"strings"
	"testing"
)

// A report of some stages replaces what an earlier one says of these, and nothing else.
func TestMerge(t *testing.T) {
	old := &report{machine: "the old machine"}
	for _, stage := range []string{"a", "b", "c"} {
		old.stage = stage
		old.section("Of "+stage+", 3 rounds", "what", "ms").row("x", "1")
		old.atMost("time of "+stage, 2, 1, "ms")
	}
	now := &report{machine: "the new machine", stage: "b"}
	now.section("Of b, 9 rounds", "what", "ms").row("x", "2")
	now.atMost("time of b", 0.5, 1, "ms")
	now.stage = "d"
	now.section("Of d", "what", "ms").row("x", "4")
	now.atMost("time of d", 3, 1, "ms")

	text := now.merge(old.text())
	for _, has := range []string{
		"the old machine", "## Of a, 3 rounds", "## Of b, 9 rounds", "## Of c, 3 rounds", "## Of d",
		"| time of a | at most 1 ms | 2 ms | **missed by 100%** |", "| time of b | at most 1 ms | 0.5 ms | met |", "| time of d | at most 1 ms | 3 ms | **missed by 200%** |",
		"- **time of a**", "- **time of d**", "Stage `a`.\n", "Stage `b`, measured apart from the rest, in ", ", on the new machine.\n",
	} {
		if strings.Count(text, has) == 0 {
			t.Errorf("%q is missing", has)
		}
	}
	for _, lacks := range []string{"Of b, 3 rounds", "- **time of b**", "| time of b | at most 1 ms | 2 ms"} {
		if strings.Contains(text, lacks) {
			t.Errorf("%q is still there", lacks)
		}
	}
	if order := []int{strings.Index(text, "## Of a"), strings.Index(text, "## Of b"), strings.Index(text, "## Of c")}; order[0] > order[1] || order[1] > order[2] {
		t.Errorf("the sections are at %v", order)
	}
	if again := now.merge(text); again != text {
		t.Errorf("merged twice:\n%s\nand not\n%s", again, text)
	}
	if t.Failed() {
		t.Log(text)
	}
}
