package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
)

// Path returns the folder of a root's history.
func Path(dir root.Dir) string { return filepath.Join(dir.State(), "history") }

// Remove removes the history of a root. It reports whether there was one.
func Remove(dir root.Dir) (was bool, err error) {
	if _, err := os.Lstat(Path(dir)); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return true, os.RemoveAll(Path(dir))
}

const (
	// parts is how many segments the limits span. The files have at most one segment more.
	parts = 8
	// meanLine is how many bytes a record may have in the mean: if records have more, prune removes
	// old records early.
	meanLine = 4 << 10
	// doubt is how long a record of an earlier boot must have been too old before its segment is
	// removed: the wall clock may be wrong for a while after a boot.
	doubt = time.Hour
)

// segment is a file of records.
type segment struct {
	number  uint64
	records int
	size    int64
	first   ending // when the attachments of its first and its last record ended
	last    ending
	tooOld  int64 // since when the last record has been too old, CLOCK_BOOTTIME; 0: it is not
}

const suffix = ".log"

func (s *segment) name() string { return fmt.Sprintf("%010d%s", s.number, suffix) }

// folder is where the segments are. It has one user at a time.
type folder struct {
	dir      string
	segments []*segment // the oldest first; nil: not looked at yet
	looked   bool
	file     *os.File // the last segment; nil: not open
}

// write appends lines, removes segments that the limits do not cover, and returns how many of
// the lines are in the files, also after an error. After an error the folder must be closed.
func (f *folder) write(lines []line, limits Limits, now Now) (written int, err error) {
	if err := f.open(); err != nil {
		return 0, err
	}
	for len(lines) > 0 && limits.Records > 0 {
		n, err := f.append(lines, limits, now)
		written += n
		if err != nil {
			return written, err
		}
		lines = lines[n:]
	}
	return written + len(lines), f.prune(limits, now)
}

// open reads once what segments there are. If somebody has removed the folder or the open segment
// since, open begins anew.
func (f *folder) open() error {
	if f.looked {
		if f.file == nil || f.stays() {
			return nil
		}
		f.close()
	}
	numbers, err := list(f.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, n := range numbers {
		s := &segment{number: n}
		if err := s.survey(f.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f.segments = append(f.segments, s)
	}
	f.looked = true
	return nil
}

// stays reports whether the file that is open is still the one of its name.
func (f *folder) stays() bool {
	have, err := f.file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(f.file.Name())
	return err == nil && os.SameFile(have, there)
}

// list returns the numbers of a folder's segments, the oldest first.
func list(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var numbers []uint64
	for _, e := range entries {
		name, ours := strings.CutSuffix(e.Name(), suffix)
		n, err := strconv.ParseUint(name, 10, 64)
		if ours && err == nil && (&segment{number: n}).name() == e.Name() {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// survey counts a segment's records.
func (s *segment) survey(dir string) error {
	file, err := root.Open(filepath.Join(dir, s.name()))
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	s.size = info.Size()
	var first, last []byte
	in := bufio.NewReaderSize(file, maxLine)
	for {
		line, err := in.ReadSlice('\n')
		if err == nil {
			if raw, bad := text(line[:len(line)-1]); bad == nil {
				if s.records++; s.records == 1 {
					first = slices.Clone(raw)
				}
				last = append(last[:0], raw...)
			}
		} else if errors.Is(err, io.EOF) {
			break
		} else if !errors.Is(err, bufio.ErrBufferFull) { // else a damaged line, which ends some time
			return err
		}
	}
	s.first, s.last = endingOf(first), endingOf(last)
	return nil
}

// append writes as many of the lines as have room in the segment under way.
func (f *folder) append(lines []line, limits Limits, now Now) (written int, err error) {
	if err := f.begin(limits, now); err != nil {
		return 0, err
	}
	s := f.segments[len(f.segments)-1]
	lines = lines[:min(len(lines), max(1, limits.Records/parts-s.records))]
	torn, err := f.torn(s)
	if err != nil {
		return 0, err
	}
	var buf []byte
	if torn { // a crash has torn the last line
		buf = append(buf, '\n')
	}
	var ends []int // of each line in buf
	for _, l := range lines {
		buf = append(buf, l.text...)
		ends = append(ends, len(buf))
	}
	n, err := f.file.Write(buf)
	for written < len(ends) && ends[written] <= n {
		written++
	}
	s.size += int64(n)
	s.records += written
	if err != nil {
		return written, err
	}
	if s.records == written {
		s.first = lines[0].end
	}
	s.last, s.tooOld = lines[written-1].end, 0
	return written, nil
}

// torn reports whether the segment under way ends within a line.
func (f *folder) torn(s *segment) (bool, error) {
	if s.size == 0 {
		return false, nil
	}
	var end [1]byte
	_, err := f.file.ReadAt(end[:], s.size-1)
	return end[0] != '\n', err
}

// begin opens the segment under way, or begins another one if that segment is full or has records
// of too long a time.
func (f *folder) begin(limits Limits, now Now) error {
	n := len(f.segments)
	if n > 0 {
		s := f.segments[n-1]
		if s.records < max(1, limits.Records/parts) && s.size < int64(limits.Records)*meanLine/parts+maxLine &&
			(s.records == 0 || now.age(s.first) < limits.Age/parts) {
			if f.file != nil {
				return nil
			}
			return f.openLast(0)
		}
		if err := f.closeFile(); err != nil {
			return err
		}
		f.segments = append(f.segments, &segment{number: s.number + 1})
	} else {
		f.segments = append(f.segments, &segment{number: 1})
	}
	err := os.MkdirAll(f.dir, 0o700)
	if err == nil {
		err = f.openLast(os.O_CREATE | os.O_EXCL)
	}
	if err != nil {
		f.segments = f.segments[:len(f.segments)-1]
		return err
	}
	return nil
}

// openLast opens the last segment to append to it. It refuses what is no regular file.
func (f *folder) openLast(flags int) error {
	path := filepath.Join(f.dir, f.segments[len(f.segments)-1].name())
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|flags, 0o600)
	if err != nil {
		return err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(fmt.Errorf("opening %s: %w", path, errors.Join(err, root.ErrIrregular)), file.Close())
	}
	f.file = file
	return nil
}

// prune removes the oldest segment, and again the oldest, as long as the younger segments have as
// many records as the limits say, or all segments have too many bytes, or the oldest segment is too
// old.
func (f *folder) prune(limits Limits, now Now) error {
	records, size := 0, int64(0)
	for _, s := range f.segments {
		records, size = records+s.records, size+s.size
	}
	for len(f.segments) > 0 {
		s := f.segments[0]
		last := len(f.segments) == 1
		switch {
		case limits.Records == 0, !last && records-s.records >= limits.Records, !last && size > int64(limits.Records)*meanLine, s.expired(limits.Age, now):
		default:
			return nil
		}
		if last {
			if err := f.closeFile(); err != nil {
				return err
			}
		}
		if err := os.Remove(filepath.Join(f.dir, s.name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		records, size = records-s.records, size-s.size
		f.segments = f.segments[1:]
	}
	return nil
}

// expired reports whether a segment's last record is too old, and has been so for a while.
func (s *segment) expired(age time.Duration, now Now) bool {
	if s.records > 0 && now.age(s.last) <= age {
		s.tooOld = 0
		return false
	}
	if s.records == 0 {
		return false
	}
	if s.tooOld == 0 {
		s.tooOld = now.Boottime
	}
	return s.last.boot == now.Boot || now.Boottime-s.tooOld >= int64(doubt)
}

func (f *folder) closeFile() error {
	if f.file == nil {
		return nil
	}
	file := f.file
	f.file = nil
	return file.Close()
}

// close forgets what is known of the folder.
func (f *folder) close() {
	_ = f.closeFile() // a close that fails takes back nothing that was written
	*f = folder{dir: f.dir}
}

// endingOf returns when the attachment ended that a record's text is about; zero, if it cannot be
// read.
func endingOf(text []byte) ending {
	var r record
	if json.Unmarshal(text, &r) != nil {
		return ending{}
	}
	return r.ending()
}
