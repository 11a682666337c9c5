// Package bundle writes a bundle for a bug report: an archive with a file for each part.
// A part that fails, takes too long or is too large never stops the others.
package bundle

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/patience"
)

// Part is one file of a bundle.
type Part struct {
	Name string // of its file, such as status.json
	What string // what is in it, for the README
	// Write writes the part. It gets a context that ends with its Limit, and it may hang all
	// the same.
	Write func(ctx context.Context, w io.Writer) error
	Limit time.Duration // how long Write may take; 0: usual
	Max   int           // how many bytes the part may have; 0: most
	Tail  bool          // of a part that is too large, keep its end, not its beginning
}

const (
	usual = 20 * time.Second
	most  = 8 << 20
)

// file is a part that has been gathered.
type file struct {
	name    string
	content []byte
	err     error // why the content is not whole
}

// Write gathers all parts at once, and writes them as a gzipped tar archive with a README in
// front. All files of the archive are in a folder. An error of Write is an error of w.
func Write(ctx context.Context, w io.Writer, folder string, now time.Time, about string, parts []Part) error {
	var (
		files     = make([]file, len(parts))
		calls     patience.Calls
		gathering sync.WaitGroup
	)
	for i, p := range parts {
		gathering.Go(func() { files[i] = p.gather(ctx, &calls) })
	}
	gathering.Wait()

	zip := gzip.NewWriter(w)
	archive := tar.NewWriter(zip)
	add := func(name string, content []byte) error {
		err := archive.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: path.Join(folder, name), Mode: 0o600, Size: int64(len(content)), ModTime: now,
		})
		if err == nil {
			_, err = archive.Write(content)
		}
		return err
	}
	err := add("README", []byte(readme(about, parts)))
	for _, f := range files {
		if len(f.content) > 0 || f.err == nil {
			err = errors.Join(err, add(f.name, f.content))
		}
		if f.err != nil {
			err = errors.Join(err, add(f.name+".error", []byte(f.err.Error()+"\n")))
		}
	}
	return errors.Join(err, archive.Close(), zip.Close())
}

// gather writes a part into memory. It keeps what a part wrote before the part failed or hung.
func (p Part) gather(ctx context.Context, calls *patience.Calls) file {
	limit, size := p.Limit, p.Max
	if limit == 0 {
		limit = usual
	}
	if size == 0 {
		size = most
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	b := &bounded{max: size, tail: p.Tail}
	_, err := patience.Call(calls, p.Name, limit, func() (struct{}, error) { return struct{}{}, p.Write(ctx, b) }, nil)
	if errors.Is(err, patience.ErrHangs) {
		err = fmt.Errorf("it was not done within %s", limit)
	}
	content, cut := b.end()
	if cut > 0 {
		which := "first"
		if p.Tail {
			which = "last"
		}
		err = errors.Join(err, fmt.Errorf("it is too large: only the %s %d bytes are here, %d are not", which, len(content), cut))
	}
	return file{p.Name, content, err}
}

// readme says what is in the archive. about is what to say before the list.
func readme(about string, parts []Part) string {
	var b strings.Builder
	b.WriteString(strings.TrimSpace(about) + "\n\n")
	width := 0
	for _, p := range parts {
		width = max(width, len(p.Name))
	}
	for _, p := range parts {
		fmt.Fprintf(&b, "%-*s  %s\n", width, p.Name, p.What)
	}
	b.WriteString("\nIf a part failed, took too long or was too large, NAME.error says so, and NAME has what\nthere was of it.\n")
	return b.String()
}
