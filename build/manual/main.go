// Command manual writes what a package has for people at a terminal: man pages of berth and
// its subcommands, and completion for bash, zsh and fish. The pages of the other programs,
// *.8, are written by hand and lie in this folder.
//
//	manual DIR	writes DIR/man/*.1 and DIR/completion/berth.*
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra/doc"

	"github.com/berth-net/berth/internal/cli"
	"github.com/berth-net/berth/internal/version"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: manual DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "manual:", err)
		os.Exit(1)
	}
}

// write writes the pages and completions below dir. The date of the pages is
// SOURCE_DATE_EPOCH, if that is set.
func write(dir string) error {
	man, completion := filepath.Join(dir, "man"), filepath.Join(dir, "completion")
	if err := errors.Join(os.MkdirAll(man, 0o755), os.MkdirAll(completion, 0o755)); err != nil {
		return err
	}
	c := cli.Command()
	c.DisableAutoGenTag = true // the tag would have the date of the build
	header := &doc.GenManHeader{Section: "1", Source: "Berth " + version.Text, Manual: "Berth"}
	return errors.Join(
		doc.GenManTree(c, header, man),
		c.GenBashCompletionFileV2(filepath.Join(completion, "berth.bash"), true),
		c.GenZshCompletionFile(filepath.Join(completion, "berth.zsh")),
		c.GenFishCompletionFile(filepath.Join(completion, "berth.fish"), true),
	)
}
