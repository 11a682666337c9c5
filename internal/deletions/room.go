package deletions

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// says reports whether r says all that o says: once the agent has done r, o has nothing left
// to do. r and o may both wait, because a runtime repeats DEL.
func (r Record) says(o Record) bool {
	if r.Network != o.Network || r.Container != o.Container || r.Ifname != o.Ifname || r.Boot != o.Boot || r.Started < o.Started {
		return false
	}
	// The other fields are about the link, by which the agent finds a pod that no ledger knows.
	return o.Link == "" || r.Link == o.Link &&
		(len(o.Addresses) == 0 || slices.Equal(r.Addresses, o.Addresses)) && (o.Netns == "" || r.Netns == o.Netns)
}

// makeRoom gives up at most Spares deletions, of any key, that newer deletions repeat, and returns
// how many it gave up. It does not read a deletion whose name tells that it is the only one of its
// key.
//
// No deletion gets lost, even if other writers do the same meanwhile or die: of the deletions that
// say the same, the newest is on disk before makeRoom gives up the first of the others. Only an
// agent removes the newest, after it has done that deletion.
func (f *folder) makeRoom() (made int, err error) {
	names, err := f.list()
	if err != nil {
		return 0, err
	}
	said := f.said(names)
	if len(said) == 0 {
		return 0, nil
	}
	if err := fsync(f.fd); err != nil {
		return 0, fmt.Errorf("syncing %s: %w", f.path, err)
	}
	spare := 0
	for _, name := range said {
		for slices.Contains(names, spareName(spare)) {
			spare++
		}
		if err := f.giveUp(name, spare); err != nil {
			return made, err
		}
		made++
		spare++
	}
	return made, nil
}

// said returns the files in the folder that are deletions which newer ones repeat, at most
// Spares of them.
func (f *folder) said(names []string) (said []string) {
	waiting := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !isName(name) })
	slices.Sort(waiting) // by key, then by Started
	key := func(i int) string {
		if i < 0 || i >= len(waiting) {
			return ""
		}
		return waiting[i][:keyLen]
	}
	var newer []Record // of the same key
	for i := len(waiting) - 1; i >= 0 && len(said) < Spares; i-- {
		if key(i) != key(i+1) {
			newer = nil
			if key(i) != key(i-1) {
				continue
			}
		}
		e, err := f.read(waiting[i])
		if err != nil { // the agent has done the deletion meanwhile, or the file is damaged, and the agent sets it aside
			continue
		}
		if slices.ContainsFunc(newer, func(r Record) bool { return r.says(e.Record) }) {
			said = append(said, waiting[i])
			continue
		}
		newer = append(newer, e.Record)
	}
	return said
}

// giveUp makes a deletion's file the i-th spare file, which keeps the room from others that
// write to a full disk. It removes the file instead if the file does not have the size of a
// spare one, or if there is an i-th spare file.
func (f *folder) giveUp(name string, i int) error {
	var st unix.Stat_t
	err := unix.Fstatat(f.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && st.Size == MaxSize && unix.Renameat2(f.fd, name, f.fd, spareName(i), unix.RENAME_NOREPLACE) == nil {
		return nil
	}
	if err == nil {
		err = unix.Unlinkat(f.fd, name, 0)
	}
	if err != nil && err != unix.ENOENT {
		return fmt.Errorf("removing the deletion %s, which a newer one replaces: %w", strings.TrimSuffix(name, suffix), err)
	}
	return nil
}
