package oracle

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

// mostContent is the greatest size, in bytes, of a file that Mentions reads.
const mostContent = 1 << 20

// Mentions looks in the text files below dir for words that match the pattern word. It returns a line
// for each file and word. It leaves out binary files, files larger than mostContent and logs (*.log). If
// dir does not exist, it returns nothing.
func Mentions(dir string, word *regexp.Regexp) (State, error) {
	var s State
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile, or dir itself
			return nil
		}
		if err != nil || !d.Type().IsRegular() || filepath.Ext(path) == ".log" {
			return err
		}
		info, err := d.Info()
		// A namespace that has a path is a file of size 0 that cannot be read.
		if errors.Is(err, fs.ErrNotExist) || err == nil && (info.Size() == 0 || info.Size() > mostContent) {
			return nil
		}
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || bytes.IndexByte(content, 0) >= 0 {
			return nil
		}
		words := map[string]bool{}
		for _, w := range word.FindAll(content, -1) {
			if !words[string(w)] {
				words[string(w)] = true
				s.lines = append(s.lines, fmt.Sprintf("file-content %s mentions %s", path, w))
			}
		}
		return err
	})
	slices.Sort(s.lines)
	return s, err
}
