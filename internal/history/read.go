package history

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/patience"
	"github.com/berth-net/berth/internal/root"
)

// block is how many bytes a reader reads at once.
const block = 64 << 10

// Reader reads a history, the attachments that ended last first. It needs memory for some
// blocks, however long the history is.
type Reader struct {
	filter api.PastFilter
	find   []byte          // a text that is in each line which the filter matches; nil: not known
	only   map[string]bool // attachments by id; nil: all
	limits Limits
	now    Now
	dir    string
	calls  *patience.Calls // nil: the reader waits for the disk

	corrected map[string]bool // attachments by id: a record that was read corrects the records of the attachment that are still to come

	queue   []line // what was not written when the reader began
	parts   []part // to be read, the oldest first
	listed  bool   // parts is known
	file    *os.File
	lines   *backward // of file
	seen    int       // records, whether the filter matches them or not
	found   int       // records that the filter matches
	damaged int
}

// part is what a reader reads of a segment.
type part struct {
	number uint64
	size   int64 // -1: all
}

// Read returns a reader of the history as it is now. It waits for the disk for a second at most.
func (h *History) Read(f api.PastFilter) *Reader {
	_ = h.Flush() // what Flush cannot write, the reader takes from memory
	h.writing.Lock()
	defer h.writing.Unlock()
	r := newReader(h.Dir, h.Limits(), h.Now(), f)
	r.calls = h.calls
	h.mu.Lock()
	r.queue = slices.Clone(h.queue)
	h.mu.Unlock()
	if h.folder != nil {
		r.listed = true
		for _, s := range h.folder.segments {
			r.parts = append(r.parts, part{s.number, s.size})
		}
	}
	return r
}

// Read returns a reader of a root's history, without the agent.
func Read(dir root.Dir, l Limits, now Now, f api.PastFilter) *Reader {
	return newReader(Path(dir), l, now, f)
}

func newReader(dir string, l Limits, now Now, f api.PastFilter) *Reader {
	return &Reader{filter: f, find: needle(f), limits: l, now: now, dir: dir}
}

// needle returns a text that each line has which a filter matches, so that the reader need not
// decode other lines. needle uses only plain words, because JSON may write other texts in several
// ways.
func needle(f api.PastFilter) []byte {
	for _, word := range []string{f.Container, f.Pod[strings.IndexByte(f.Pod, '/')+1:]} {
		plain := strings.IndexFunc(word, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != '_'
		}) < 0
		if word != "" && plain {
			return []byte(`"` + word + `"`)
		}
	}
	return nil
}

// idOf returns the id of the attachment that a record's text is about, if that can be told
// without decoding all of it.
func idOf(text []byte) (id string, known bool) {
	rest, ours := bytes.CutPrefix(text, []byte(`{"past":{"attachment":{"id":"`))
	word, _, ends := bytes.Cut(rest, []byte(`"`))
	if !ours || !ends || bytes.IndexByte(word, '\\') >= 0 {
		return "", false
	}
	return string(word), true
}

// Find returns the records that the history has of some attachments, by their ids. Records that
// cannot be read are missing. It waits for the disk for some seconds at most.
func (h *History) Find(ids map[string]bool) map[string]api.Past {
	r := h.Read(api.PastFilter{})
	defer r.Close()
	r.only = ids
	found := map[string]api.Past{}
	for len(found) < len(ids) {
		p, err := r.Next()
		if err != nil {
			break
		}
		if id := p.Attachment.ID; ids[id] {
			found[id] = p
		}
	}
	return found
}

// Damaged returns how many lines could not be read so far.
func (r *Reader) Damaged() int { return r.damaged }

// Close closes what the reader has open.
func (r *Reader) Close() {
	if r.file != nil {
		_ = r.file.Close() // nothing was written
		r.file = nil
	}
}

// Next returns the next attachment that the filter matches. It returns io.EOF after the last
// one. Another error says why the rest cannot be read.
func (r *Reader) Next() (api.Past, error) {
	for r.seen < r.limits.Records && (r.filter.Limit == 0 || r.found < r.filter.Limit) {
		line, err := r.line()
		if err != nil {
			return api.Past{}, err
		}
		raw, err := text(line)
		if err == nil && r.find != nil && !bytes.Contains(raw, r.find) {
			r.seen++
			continue
		}
		if id, known := idOf(raw); err == nil && r.only != nil && known && !r.only[id] {
			r.seen++
			continue
		}
		var rec record
		if err == nil {
			err = json.Unmarshal(raw, &rec)
		}
		if err != nil {
			r.damaged++
			continue
		}
		if r.corrected[rec.Past.Attachment.ID] {
			continue
		}
		if rec.Corrects {
			if r.corrected == nil {
				r.corrected = map[string]bool{}
			}
			r.corrected[rec.Past.Attachment.ID] = true
		}
		r.seen++
		// Older records may follow that are not too old, if somebody has set the clock.
		if r.now.age(rec.ending()) <= r.limits.Age && r.filter.Matches(rec.Past) {
			r.found++
			return rec.Past, nil
		}
	}
	return api.Past{}, io.EOF
}

// line returns the line before the last one that it returned, without its end.
func (r *Reader) line() ([]byte, error) {
	if n := len(r.queue); n > 0 {
		text := r.queue[n-1].text
		r.queue = r.queue[:n-1]
		return text[:len(text)-1], nil
	}
	for {
		if r.lines == nil {
			if err := r.nextPart(); err != nil {
				return nil, err
			}
		}
		line, err := r.lines.next()
		if err == nil {
			return line, nil
		}
		r.Close()
		if r.lines = nil; !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
}

// nextPart opens the youngest segment that was not read yet. nextPart skips a segment that is gone:
// the agent has removed it, because its records were too old or too many.
func (r *Reader) nextPart() error {
	if !r.listed {
		numbers, err := patient(r, func() ([]uint64, error) { return list(r.dir) })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, n := range numbers {
			r.parts = append(r.parts, part{n, -1})
		}
		r.listed = true
	}
	for len(r.parts) > 0 {
		last := r.parts[len(r.parts)-1]
		r.parts = r.parts[:len(r.parts)-1]
		file, err := patient(r, func() (*os.File, error) {
			return root.Open(filepath.Join(r.dir, (&segment{number: last.number}).name()))
		})
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		r.file = file
		if last.size < 0 {
			info, err := file.Stat()
			if err != nil {
				return err
			}
			last.size = info.Size()
		}
		r.lines = &backward{pos: last.size, read: func(n int, at int64) ([]byte, error) {
			return patient(r, func() ([]byte, error) {
				b := make([]byte, n)
				_, err := file.ReadAt(b, at)
				return b, err
			})
		}}
		return nil
	}
	return io.EOF
}

// patient makes a call that may hang.
func patient[T any](r *Reader, call func() (T, error)) (T, error) {
	if r.calls == nil {
		return call()
	}
	return patience.Call(r.calls, "read "+r.dir, hanging, call, nil)
}

// backward reads the lines of a file from its end to its beginning.
type backward struct {
	read func(n int, at int64) ([]byte, error)
	pos  int64  // what is before pos in the file was not read yet
	buf  []byte // what was read, and is before the lines that next has returned
	skip bool   // buf ends within a line that is too long
	all  bool   // the first line was returned
}

// tooLong stands for a line that is too long to be a record.
var tooLong = []byte("too long")

// next returns the line before the one that it returned last. It leaves out empty lines, and
// returns io.EOF behind the first line of the file.
func (b *backward) next() ([]byte, error) {
	for !b.all {
		line := b.buf
		if i := bytes.LastIndexByte(b.buf, '\n'); i >= 0 {
			b.buf, line = b.buf[:i], b.buf[i+1:]
		} else if b.pos > 0 {
			if err := b.more(); err != nil {
				return nil, err
			}
			continue
		} else {
			b.all = true
		}
		if b.skip {
			b.skip, line = false, tooLong
		}
		if len(line) > 0 {
			return line, nil
		}
	}
	return nil, io.EOF
}

// more reads the block before buf, which has no whole line.
func (b *backward) more() error {
	if len(b.buf) > maxLine {
		b.buf, b.skip = nil, true
	}
	n := min(b.pos, block)
	more, err := b.read(int(n), b.pos-n)
	if err != nil {
		return err
	}
	b.pos -= n
	b.buf = append(more, b.buf...)
	return nil
}
