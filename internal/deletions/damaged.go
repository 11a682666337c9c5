package deletions

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Damaged is a file that was found in the queue and is no deletion. The queue keeps it in
// the folder damaged/ for people: the pod that the file was to delete may still be there.
type Damaged struct {
	Name  string
	Err   error     // what is wrong with it
	Since time.Time // when it was set aside
}

// Damaged returns what has been set aside, oldest first.
func (q *Queue) Damaged() ([]Damaged, error) {
	f, err := openFolder(q.dir)
	if err != nil {
		return nil, err
	}
	defer f.close()
	d, names, err := f.damaged()
	if d == nil {
		return nil, err
	}
	defer d.close()
	var all []Damaged
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			continue // somebody has removed it
		}
		_, err := d.read(name)
		if err == nil {
			err = errReadable
		}
		all = append(all, Damaged{name, err, time.Unix(st.Ctim.Unix())})
	}
	slices.SortFunc(all, func(a, b Damaged) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name)) })
	return all, nil
}

// damaged opens the folder of files that were set aside, and returns it with the names in
// it. The folder is nil if there is none.
func (f *folder) damaged() (*folder, []string, error) {
	path := f.path + "/" + damagedName
	fd, err := openDir(f.fd, damagedName)
	if err == unix.ENOENT {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("opening %s: %w", path, err)
	}
	d := &folder{fd, path}
	names, err := d.list()
	if err != nil {
		d.close()
		return nil, nil, err
	}
	return d, names, nil
}

// setAside moves a file that is no deletion into the folder damaged/. It changes nothing of
// the file, which may be a folder or a symbolic link.
func (f *folder) setAside(name string) error {
	fd, err := makeDir(f.fd, damagedName, openDir)
	if err == nil {
		err = f.moveTo(fd, name)
		err = errors.Join(err, fsync(fd), fsync(f.fd))
		unix.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("setting the damaged deletion %s aside: %w", name, err)
	}
	return nil
}

// moveTo moves a file into another folder. If that folder has a file of the same name, the
// moved file gets another name. It is no error if the file is gone.
func (f *folder) moveTo(fd int, name string) error {
	to := name
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		random, err := randomText()
		if err != nil {
			return err
		}
		to += "-" + random
	}
	if err := unix.Renameat(f.fd, name, fd, to); err != unix.ENOENT {
		return err
	}
	return nil
}

// TakeBack moves files that were set aside back into the queue if this program can read them as
// deletions, for instance because it is newer. The agent calls TakeBack at its start. Even
// after an error the agent should do the deletions that wait already.
func (q *Queue) TakeBack() error {
	f, err := openFolder(q.dir)
	if err != nil {
		return err
	}
	defer f.close()
	d, names, err := f.damaged()
	if d == nil {
		return err
	}
	defer d.close()
	var errs []error
	for _, name := range names {
		if _, err := d.read(name); err != nil {
			continue
		}
		if err := unix.Renameat(d.fd, name, f.fd, name); err != nil && err != unix.ENOENT {
			errs = append(errs, fmt.Errorf("taking the deletion %s back into the queue: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
