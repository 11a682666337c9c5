// Package house holds the tree to the table of rooms in docs/ARCHITECTURE.md.
package house

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

const module = "github.com/berth-net/berth/"

// tests is the row of rooms that only tests import: they may import whatever they test.
const tests = "tests"

// rooms reads the table: the row of each room, the highest row first. "internal/kernel/*" are all rooms
// below a folder.
func rooms(t *testing.T) (rows []string, row map[string]int) {
	t.Helper()
	raw, err := os.ReadFile("../../docs/ARCHITECTURE.md")
	nettest.Must(t, err)
	_, table, found := strings.Cut(string(raw), "| row | room | what it keeps |\n|---|---|---|\n")
	if !found {
		t.Fatal("docs/ARCHITECTURE.md has no table of rooms")
	}
	row = map[string]int{}
	name := regexp.MustCompile("`((?:internal|api|cmd)[a-z0-9/*-]*)`")
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			break
		}
		if r := strings.TrimSpace(cells[1]); r != "" {
			rows = append(rows, r)
		}
		for _, m := range name.FindAllStringSubmatch(cells[2], -1) {
			row[strings.TrimSuffix(m[1], "/*")] = len(rows) - 1
		}
	}
	return rows, row
}

// rowOf returns the row of a package: its own, or that of the folder that it is in; -1: it has none.
func rowOf(row map[string]int, pkg string) int {
	for pkg != "" {
		if r, ok := row[pkg]; ok {
			return r
		}
		pkg = pkg[:max(strings.LastIndex(pkg, "/"), 0)]
	}
	return -1
}

// Every room of Berth is in the table, and imports only rooms of its own row or of rows below.
func TestRows(t *testing.T) {
	rows, row := rooms(t)
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"internal/...", module+"cmd/...", module+"api/...").Output()
	nettest.Must(t, err)
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(strings.ReplaceAll(line, module, ""))
		room := words[0]
		at := rowOf(row, room)
		if at < 0 {
			t.Errorf("%s has no row in docs/ARCHITECTURE.md", room)
			continue
		}
		if rows[at] == tests || strings.HasSuffix(room, "test") {
			continue
		}
		for _, other := range words[1:] {
			if of := rowOf(row, other); of >= 0 && of < at {
				t.Errorf("%s (%s) imports %s (%s), which is above it", room, rows[at], other, rows[of])
			}
		}
	}
}
