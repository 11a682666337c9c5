package cli

import (
	"cmp"
	"strings"
	"unicode/utf8"
)

// ink is a colour of text on a terminal, as an SGR parameter (ECMA-48).
type ink string

const (
	plain  ink = ""
	bold   ink = "1"
	red    ink = "31"
	green  ink = "32"
	yellow ink = "33"
)

// ink colours text if the output may have colours.
func (a *app) ink(i ink, text string) string {
	if i == plain || !a.colour || text == "" {
		return text
	}
	return "\x1b[" + string(i) + "m" + text + "\x1b[0m"
}

// cell is a table's text with a colour.
type cell struct {
	text string
	ink  ink
}

// table prints in columns, two spaces apart. Empty cells are shown as "-".
type table struct {
	rows [][]cell // the first one is the heading
}

func newTable(heading ...string) *table {
	t := &table{}
	t.row(cells(heading, bold)...)
	return t
}

func cells(texts []string, i ink) []any {
	row := make([]any, len(texts))
	for n, text := range texts {
		row[n] = cell{text, i}
	}
	return row
}

// row adds a row of strings and cells.
func (t *table) row(values ...any) {
	row := make([]cell, len(values))
	for i, v := range values {
		switch v := v.(type) {
		case cell:
			row[i] = v
		case string:
			row[i] = cell{text: v}
		}
		row[i].text = cmp.Or(row[i].text, "-")
	}
	t.rows = append(t.rows, row)
}

// table prints t.
func (a *app) table(t *table) {
	var widths []int
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	for _, row := range t.rows {
		var line strings.Builder
		for i, c := range row {
			line.WriteString(a.ink(c.ink, c.text))
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)+2))
			}
		}
		a.say("%s\n", line.String())
	}
}

// fact prints one line of a description.
func (a *app) fact(name, format string, args ...any) {
	a.say("%-12s  "+format+"\n", append([]any{name}, args...)...)
}
