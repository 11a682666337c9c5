package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/conform/command"
	"github.com/berth-net/berth/internal/demo"
)

// usage is an error in the command line.
type usage struct{ error }

// exit is the exit code for an answer that has been printed already.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// coded is an error with an exit code other than 1.
type coded struct {
	code int
	error
}

func (c coded) Unwrap() error { return c.error }

// usageArgs turns an error of check into a usage error. Without a check, it refuses all
// arguments.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	if check == nil {
		check = cobra.NoArgs
	}
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return usage{err}
		}
		return nil
	}
}

// report prints an error as one line that says what to do, and returns the exit
// code.
func (a *app) report(c *cobra.Command, err error) int {
	var (
		answer exit
		code   coded
		wrong  usage
		inner  *exec.ExitError
		judged *command.Failure
	)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &answer):
		return int(answer)
	case errors.As(err, &judged): // of berth conform
		if judged.Err != nil {
			a.complain("%s", oneLine(judged.Err))
		}
		return judged.Code
	case errors.As(err, &code):
		a.complain("%s%s", oneLine(err), a.remedy(err))
		return code.code
	case errors.As(err, &inner): // the demo's inner process has said why
		return max(inner.ExitCode(), 1)
	case errors.Is(err, demo.ErrResidue):
		return 1
	case errors.As(err, &wrong), c == c.Root(): // an unknown subcommand
		a.complain("%s; see `%s --help`", oneLine(err), c.CommandPath())
		return 2
	}
	a.complain("%s%s", oneLine(err), a.remedy(err))
	return 1
}

func (a *app) complain(format string, args ...any) {
	_, _ = fmt.Fprintf(a.stderr, "berth: "+format+"\n", args...)
}

// remedy says what to do about an error, if it is a usual one.
func (a *app) remedy(err error) string {
	switch {
	case errors.Is(err, client.ErrAway):
		return fmt.Sprintf("; is berthd running with --root %s? `berth status` shows what is known without the agent", a.root)
	case errors.Is(err, fs.ErrPermission):
		return "; run it as root"
	case errors.Is(err, context.DeadlineExceeded):
		return "; the agent hangs, or still restores what its ledger says: see `berth status`"
	}
	return ""
}

// oneLine writes an error on one line: cobra's errors and joined ones have several.
func oneLine(err error) string {
	var b strings.Builder
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(line)
		switch said := b.String(); {
		case line == "" || said == "":
		case strings.HasSuffix(said, "?"): // cobra's "Did you mean this?"
			b.WriteString(" ")
		default:
			b.WriteString("; ")
		}
		b.WriteString(line)
	}
	return b.String()
}
