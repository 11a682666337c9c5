package conform

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// writable says what plugins can write on the node.
func (t *T) writable() string {
	return fmt.Sprintf("here plugins can write only to these folders of the machine: %s; --state-dir adds others. Of /proc/sys they can write only what belongs to the network namespace, in net",
		strings.Join(t.store.writable(), ", "))
}

// noteReadOnly notes what can be written, if a bad outcome mentions EROFS or a path that cannot be written here: the plugin may have expected to write
// there.
func (t *T) noteReadOnly() {
	if !t.outcome.Bad() {
		return
	}
	said := strings.Join(t.seen, "\n")
	switch paths := t.readOnlyIn(said); {
	case strings.Contains(strings.ToLower(said), unix.EROFS.Error()):
		t.Notef("%s", t.writable())
	case len(paths) > 0 && t.outcome == Fail:
		t.Notef("if the plugin wanted to write %s: %s", strings.Join(paths, ", "), t.writable())
	default:
		return
	}
	for _, dir := range slices.Sorted(maps.Keys(t.store.denied)) {
		t.Notef("%v", t.store.denied[dir])
	}
}

// pathIn matches what may be a path in a text of plugins.
var pathIn = regexp.MustCompile(`(?:^|[\s"'=:(\[])(/[^\s"'\\,;:)\]]+)`)

// readOnlyIn returns the paths in a text that are in file systems that can only be read, but for those of programs, which plugins do not write.
func (t *T) readOnlyIn(text string) (all []string) {
	for _, match := range pathIn.FindAllStringSubmatch(text, -1) {
		path := match[1]
		var at unix.Statfs_t // access(2) tells a plain user of a folder's mode before it tells that nobody can write
		err := unix.Statfs(path, &at)
		if errors.Is(err, unix.ENOENT) {
			err = unix.Statfs(base(path), &at)
		}
		if err == nil && at.Flags&unix.ST_RDONLY != 0 && !within(path, t.suite.BinDir) && executable(path) != nil && !slices.Contains(all, path) {
			all = append(all, path)
		}
	}
	return all
}
