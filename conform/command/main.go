package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/conform"
)

// Failure is why the command ends with another exit code than 0.
type Failure struct {
	Code int
	Err  error // nil: what the command has printed says why
}

func (f *Failure) Error() string {
	if f.Err == nil {
		return fmt.Sprintf("exit code %d", f.Code)
	}
	return f.Err.Error()
}

func (f *Failure) Unwrap() error { return f.Err }

// wrong is the error of a wrong command line.
func (o *conforming) wrong(err error) error { return wrong(o.name, err) }

func wrong(name string, err error) error {
	return &Failure{2, fmt.Errorf("%w; see `%s --help`", err, name)}
}

// Program is the name of the program that is this command alone.
const Program = "cni-conform"

// Main runs the command as a program of its own and returns its exit code.
func Main(args []string) int {
	ends := []os.Signal{os.Interrupt, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) { // nohup
		ends = append(ends, unix.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	c := New(Program)
	c.Version = conform.Version
	c.Args = func(c *cobra.Command, args []string) error {
		if err := cobra.NoArgs(c, args); err != nil {
			return wrong(Program, err)
		}
		return nil
	}
	c.SetArgs(args)
	return report(os.Stderr, c.ExecuteContext(ctx))
}

// report prints an error on one line, and returns its exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	code := 1
	var f *Failure
	if errors.As(err, &f) {
		if f.Err == nil {
			return f.Code
		}
		code = f.Code
	}
	_, _ = fmt.Fprintf(w, "%s: %s\n", Program, strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; "))
	return code
}

// mustComplete panics on an error of registering a completion. Only a mistake in this package causes one: a flag that does not exist, or has a completion already.
func mustComplete(err error) {
	if err != nil {
		panic("command: " + err.Error())
	}
}
