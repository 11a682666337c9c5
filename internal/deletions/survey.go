package deletions

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
)

// Survey is what a queue has, for people.
type Survey struct {
	Pending []Entry   // in the order of Queue.Pending
	Damaged []Damaged // files that are set aside, and files that the agent has still to set aside; oldest first
	Spares  int
}

// Look surveys a root's queue, whether an agent runs or not, and changes nothing. A folder
// that is not there is an empty queue. After an error the survey is right as far as it goes.
func Look(dir root.Dir) (Survey, error) {
	path := Path(dir)
	fd, err := openDir(unix.AT_FDCWD, path)
	if errors.Is(err, unix.ENOENT) {
		return Survey{}, nil
	}
	if err != nil {
		return Survey{}, fmt.Errorf("opening %s: %w", path, err)
	}
	f := &folder{fd, path}
	defer f.close()
	names, err := f.list()
	if err != nil {
		return Survey{}, err
	}
	var s Survey
	var errs []error
	for _, name := range names {
		if strings.HasPrefix(name, sparePrefix) {
			s.Spares++
		}
		if !queued(name) {
			continue
		}
		e, err := f.read(name)
		switch {
		case err == nil:
			s.Pending = append(s.Pending, e)
		case errors.Is(err, unix.ENOENT): // the agent has done the deletion meanwhile
		case passing(err):
			errs = append(errs, fmt.Errorf("reading the deletion %s: %w", name, err))
		default:
			s.addDamaged(f, name, err)
		}
	}
	sortEntries(s.Pending)
	d, names, err := f.damaged()
	errs = append(errs, err)
	if d != nil {
		defer d.close()
		for _, name := range names {
			_, err := d.read(name)
			if err == nil {
				err = errReadable
			}
			s.addDamaged(d, name, err)
		}
	}
	slices.SortFunc(s.Damaged, func(a, b Damaged) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name)) })
	return s, errors.Join(errs...)
}

// errReadable is the Err of a file that an older program set aside, because that program could not
// read it.
var errReadable = errors.New("this program can read it; the agent puts it back into the queue at its next start")

func (s *Survey) addDamaged(f *folder, name string, why error) {
	var st unix.Stat_t
	if err := unix.Fstatat(f.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil { // otherwise the file is gone
		s.Damaged = append(s.Damaged, Damaged{name, why, time.Unix(st.Ctim.Unix())})
	}
}
