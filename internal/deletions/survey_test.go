package deletions

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/root"
)

// Look finds all that there is, and changes nothing.
func TestLook(t *testing.T) {
	dir := root.Dir(t.TempDir())
	if s, err := Look(dir); err != nil || len(s.Pending)+len(s.Damaged)+s.Spares != 0 {
		t.Errorf("without a folder: %+v, %v", s, err)
	}
	if _, err := os.Stat(Path(dir)); !os.IsNotExist(err) {
		t.Errorf("a look makes the folder: %v", err)
	}
	for i, container := range []string{"first", "second"} {
		r := Record{Network: "net", Container: container, Ifname: "eth0", Boot: "b", Started: int64(i + 1)}
		must(t, Write(dir, r))
	}
	q, err := Open(dir)
	must(t, err)
	defer q.Close()
	if _, err := q.Refill(Spares); err != nil {
		t.Fatal(err)
	}
	junk := func(name string) {
		must(t, os.WriteFile(filepath.Join(Path(dir), name), []byte("junk"), 0o600))
	}
	junk("old junk")
	if _, err := q.Pending(); err != nil { // sets it aside
		t.Fatal(err)
	}
	junk("new junk")
	before := tree(t, dir)
	s, err := Look(dir)
	if err != nil || s.Spares != Spares {
		t.Errorf("%d spares, %v", s.Spares, err)
	}
	var pending, damaged []string
	for _, e := range s.Pending {
		pending = append(pending, e.Record.Container)
	}
	for _, d := range s.Damaged {
		damaged = append(damaged, d.Name+": "+d.Err.Error())
	}
	if got := strings.Join(pending, " "); got != "first second" {
		t.Errorf("pending: %s", got)
	}
	if got := strings.Join(damaged, "; "); len(damaged) != 2 || !strings.Contains(got, "old junk: its name") || !strings.Contains(got, "new junk: its name") {
		t.Errorf("damaged: %s", got)
	}
	if after := tree(t, dir); after != before {
		t.Errorf("it was\n%s\nand is\n%s", before, after)
	}
}

func tree(t *testing.T, dir root.Dir) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(string(dir), func(path string, _ os.DirEntry, err error) error {
		all = append(all, path)
		return err
	})
	must(t, err)
	return strings.Join(all, "\n")
}
