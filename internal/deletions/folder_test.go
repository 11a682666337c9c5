package deletions

import (
	"os"
	"testing"

	"github.com/berth-net/berth/internal/root"
)

// A user that could write into the folder could have any pod deleted. Whatever mode the folder
// was made with, others cannot write into it once the queue uses it.
func TestFolderIsShut(t *testing.T) {
	for name, use := range map[string]func(root.Dir) error{
		"plugin": func(dir root.Dir) error { return Write(dir, example) },
		"agent": func(dir root.Dir) error {
			q, err := Open(dir)
			if err == nil {
				err = q.Close()
			}
			return err
		},
	} {
		dir := root.Dir(t.TempDir())
		must(t, os.MkdirAll(Path(dir), 0o700))
		must(t, os.Chmod(Path(dir), 0o777)) // whatever the umask
		if err := use(dir); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if info, err := os.Stat(Path(dir)); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: the folder is %v, %v", name, info.Mode(), err)
		}
	}
}

func TestMayOwn(t *testing.T) {
	for _, test := range []struct {
		uid  uint32
		euid int
		want bool
	}{
		{0, 0, true},
		{1000, 0, false},
		{1000, 1000, true},
		{0, 1000, true},
		{1000, 1001, false},
	} {
		if got := mayOwn(test.uid, test.euid); got != test.want {
			t.Errorf("a folder of user %d, for %d: %v", test.uid, test.euid, got)
		}
	}
}
