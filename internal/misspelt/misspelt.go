// Package misspelt finds the known word that somebody probably meant by an unknown word.
package misspelt

import (
	"fmt"
	"strings"
)

// Meant returns ": perhaps "X" is meant" for the known word that is nearest to an unknown one,
// or "" if none is near.
func Meant(unknown string, known []string) string {
	if near := Nearest(unknown, known); near != "" {
		return fmt.Sprintf(": perhaps %q is meant", near)
	}
	return ""
}

// longest is how many bytes a word may have that Nearest looks at.
const longest = 64

// Nearest returns the known word that differs least from an unknown one, whatever their case, or "" if
// each known word differs from the unknown one in more letters than a third of the unknown one's length.
func Nearest(unknown string, known []string) string {
	best, least := "", len(unknown)/3
	if len(unknown) > longest {
		return ""
	}
	for _, k := range known {
		if d := distance(strings.ToLower(unknown), strings.ToLower(k)); d < least || d == least && best == "" {
			best, least = k, d
		}
	}
	return best
}

// distance returns how many letters have to be added, left out, replaced, or exchanged with
// their neighbour to make b of a (the restricted Damerau-Levenshtein distance).
func distance(a, b string) int {
	var before, last []int // rows of the table of distances between beginnings of a and b
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, row = last, row, make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			same := 1
			if a[i-1] == b[j-1] {
				same = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+same)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
