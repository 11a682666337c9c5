// Package house holds the tree to the table of rooms in docs/ARCHITECTURE.md.
package house

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

const module = "github.com/berth-net/berth/"

// tests is the row of rooms that only tests import: such rooms may import whatever they test.
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

// rowOf returns the row of a package: its own row, or the row of the folder that the package is in; -1:
// there is none.
func rowOf(row map[string]int, pkg string) int {
	for pkg != "" {
		if r, ok := row[pkg]; ok {
			return r
		}
		pkg = pkg[:max(strings.LastIndex(pkg, "/"), 0)]
	}
	return -1
}

// The row of rooms "X/*" names each folder of X.
func TestFoldersAreNamed(t *testing.T) {
	raw, err := os.ReadFile("../../docs/ARCHITECTURE.md")
	nettest.Must(t, err)
	for _, m := range regexp.MustCompile("(?m)^.*`([a-z/]+)/\\*`.*$").FindAllStringSubmatch(string(raw), -1) {
		folders, err := os.ReadDir("../../" + m[1])
		nettest.Must(t, err)
		for _, f := range folders {
			if f.IsDir() && f.Name() != "testdata" && !strings.Contains(m[0], "`"+f.Name()+"`") {
				t.Errorf("the row of %s/* does not say what %s is", m[1], f.Name())
			}
		}
	}
}

// A path in docs/ARCHITECTURE.md leads to a file or folder: from the tree's root on, or below internal.
func TestPathsAreThere(t *testing.T) {
	raw, err := os.ReadFile("../../docs/ARCHITECTURE.md")
	nettest.Must(t, err)
	paths := regexp.MustCompile("`([a-z][a-z0-9_]*(?:/[a-z0-9_-]+)+(?:\\.[a-z]+)?)`").FindAllStringSubmatch(string(raw), -1)
	if len(paths) < 100 {
		t.Fatalf("only %d paths are found", len(paths))
	}
	others := []string{"pool/address", "net/ipv4"} // a form, and a folder of sysctls
	for _, m := range paths {
		if slices.Contains(others, m[1]) {
			continue
		}
		_, here := os.Stat("../../" + m[1])
		_, below := os.Stat("../../internal/" + m[1])
		if here != nil && below != nil {
			t.Errorf("%s is not there", m[1])
		}
	}
}

// mostNeighbours is how many of Berth's packages a room imports, but for those that list other rooms.
const mostNeighbours = 14

var lists = []string{"internal/agent", "internal/cli", "internal/kinds"}

// Every room of Berth is in the table, and imports only rooms of its own row or of rows below, and not many.
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
		ours := slices.DeleteFunc(slices.Clone(words[1:]), func(other string) bool { return rowOf(row, other) < 0 })
		if len(ours) > mostNeighbours && strings.HasPrefix(room, "internal/") && !slices.Contains(lists, room) {
			t.Errorf("%s imports %d of Berth's packages, and a room at most %d: %v", room, len(ours), mostNeighbours, ours)
		}
		for _, other := range words[1:] {
			if of := rowOf(row, other); of >= 0 && of < at {
				t.Errorf("%s (%s) imports %s (%s), which is above it", room, rows[at], other, rows[of])
			}
		}
	}
}

// What runs for each pod and on each node links nothing of what the operator is made of. Agent and plugin ask no container runtime,
// and have no gRPC.
func TestAgentIsNoOperator(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"cmd/berthd", module+"cmd/berth-cni", module+"cmd/berth").Output()
	nettest.Must(t, err)
	for pkg := range strings.Lines(string(out)) {
		if strings.HasPrefix(pkg, "sigs.k8s.io/controller-runtime") || strings.HasPrefix(pkg, module+"internal/share") {
			t.Errorf("a program of the node links %s", strings.TrimSpace(pkg))
		}
	}
	out, err = exec.Command("go", "list", "-deps", module+"cmd/berthd", module+"cmd/berth-cni").Output()
	nettest.Must(t, err)
	for _, pkg := range []string{module + "internal/cri", "google.golang.org/grpc", "k8s.io/cri-api"} {
		if strings.Contains(string(out), pkg) {
			t.Errorf("agent or plugin links %s", pkg)
		}
	}
}
